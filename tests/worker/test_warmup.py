"""Warm-up: one prompt, then a batch, as requests would run; what fails there is told and no more."""

from __future__ import annotations

import logging

import pytest

from shared.errors import EngineDead
from tests.worker.scripted_engine import PlainPrompts, ScriptedEngine
from worker.settings import EngineSettings
from worker.startup import Started
from worker.warmup import warm_up


def settings(prompt: str) -> EngineSettings:
    return EngineSettings.load(warmup_prompt=prompt)


async def test_one_prompt_runs_and_then_a_batch_of_different_ones() -> None:
    engine = ScriptedEngine(slots=4)
    await warm_up(Started(engine, PlainPrompts(), ()), settings("hello"))
    assert [len(call) for call in engine.calls] == [1, 4]
    assert all(text.startswith("hello") for call in engine.calls for text in call)
    assert len(set(engine.calls[1])) == 4, "equal prompts would be one entry of a prefix cache"
    assert {params.max_tokens for params in engine.params} == {8}


async def test_a_failing_warm_up_is_told_and_not_fatal(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        await warm_up(Started(ScriptedEngine(), PlainPrompts(), ()), settings("fail now"))
    assert "warm-up failed" in caplog.text


async def test_an_engine_that_dies_of_its_warm_up_does_not_start() -> None:
    with pytest.raises(EngineDead):
        await warm_up(Started(ScriptedEngine(), PlainPrompts(), ()), settings("die now"))
