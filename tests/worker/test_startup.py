"""Which engine starts, with which environment, and what is told when none does."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from shared.errors import EngineDead
from worker.engines.simulated import SimulatedEngine
from worker.ladder import SetupFailed
from worker.settings import EngineSettings
from worker.startup import Started, start

pytestmark = pytest.mark.usefixtures("environment")


async def test_a_started_engine_comes_with_its_prompts_and_report() -> None:
    started = await start(EngineSettings.load(engine="simulated"), None)
    assert started.engine.name == "simulated"
    assert [(step.name, step.error) for step in started.report] == [("simulated", None)]
    assert os.environ["HF_HUB_OFFLINE"] == "1"


async def test_arguments_for_vllm_are_said_to_do_nothing_elsewhere(
    caplog: pytest.LogCaptureFixture,
) -> None:
    await start(EngineSettings.load(engine="simulated", engine_args={"max_num_seqs": 4}), None)
    assert "ENGINE_ARGS has an effect on vLLM only; simulated runs without" in caplog.text


async def test_a_folder_without_a_tokenizer_fails_before_any_engine(tmp_path: Path) -> None:
    with pytest.raises(SetupFailed, match="the tokenizer: ") as caught:
        await start(EngineSettings.load(engine="transformers"), tmp_path)
    assert "\n" not in str(caught.value)
    [step] = caught.value.report
    assert step.name == "tokenizer"
    assert step.error is not None


async def test_an_engine_that_dies_of_its_first_run_did_not_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """So that the next one is tried; and it is closed, or its threads would keep the process."""
    closed = []

    async def close(engine: SimulatedEngine) -> None:
        closed.append(engine)

    async def warm(started: Started) -> None:
        raise EngineDead("no kernel for this head size")

    monkeypatch.setattr(SimulatedEngine, "close", close)
    with pytest.raises(SetupFailed, match="simulated: no kernel for this head size"):
        await start(EngineSettings.load(engine="simulated"), None, warm=warm)
    assert len(closed) == 1


async def test_an_engine_that_needs_a_model_says_so() -> None:
    with pytest.raises(SetupFailed, match="needs a model"):
        await start(EngineSettings.load(engine="transformers"), None)
