"""Warm-up: the greeting, batches of several lengths, then the operator's questions, as requests would run."""

from __future__ import annotations

import asyncio
import json
import logging
from pathlib import Path

import pytest

from shared.errors import EngineDead
from shared.request import Req
from tests.worker.scripted_engine import PlainPrompts, ScriptedEngine
from tests.worker.serving import until
from worker.engines.base import EnginePrompt
from worker.settings import EngineSettings
from worker.startup import Started
from worker.warmup import batches, warm_up


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return tmp_path / "data.jsonl"


def settings(prompt: str, data: Path | None = None, **more: int) -> EngineSettings:
    path = str(data) if data else " "
    return EngineSettings.load(warmup_prompt=prompt, warmup_data_path=path, **more)


def write(data: Path, *texts: str) -> None:
    data.write_text("\n".join(json.dumps({"question": text}) for text in texts))


def started(engine: ScriptedEngine) -> Started:
    return Started(engine, PlainPrompts(), ())


async def test_one_prompt_runs_and_then_a_batch_of_different_ones() -> None:
    engine = ScriptedEngine(slots=4)
    await warm_up(started(engine), settings("hello"))
    assert [len(call) for call in engine.calls] == [1, 4]
    assert all(text.startswith("hello") for call in engine.calls for text in call)
    assert len(set(engine.calls[1])) == 4, "equal prompts would be one entry of a prefix cache"
    assert {params.max_tokens for params in engine.params} == {8}


async def test_the_first_questions_follow_all_of_it_repeated_the_engine_full(data: Path) -> None:
    write(data, "a", "b", "a", "never")
    engine = ScriptedEngine(slots=3)
    await warm_up(started(engine), settings("hi", data, warmup_num_samples=3, warmup_repeat=2))
    assert engine.calls[:1] == [["hi"]]
    assert engine.calls[2:] == [["a", "b", "a"], ["hi", "a", "b"], ["a"]]


async def test_the_cap_stands_over_the_number_of_questions(data: Path) -> None:
    write(data, "a", "b", "c")
    asked = settings("hi", data, warmup_num_samples=9, warmup_num_samples_cap=1)
    engine = ScriptedEngine()
    await warm_up(started(engine), asked)
    assert engine.calls[2:] == [["a"]]


async def test_questions_that_are_refused_cost_themselves_alone(
    data: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write(data, "a", "too long " * 50, "fail here", "bad template", "b")
    engine = ScriptedEngine()
    with caplog.at_level(logging.INFO):
        await warm_up(started(engine), settings("hi", data))
    assert engine.calls[2:] == [["a", "fail here", "b"]]
    assert "3 prompts were refused: the prompt has 449 tokens, 100 fit" in caplog.text
    assert "warmed up with 11 prompts" in caplog.text


async def test_what_is_run_is_told_without_the_questions(
    data: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write(data, "pelican", "pelican too")
    with caplog.at_level(logging.DEBUG):
        await warm_up(started(ScriptedEngine()), settings("hi", data, warmup_repeat=3))
    told = f"the greeting and 2 questions of {data} (at most 64), 3 times over"
    assert told in caplog.text
    assert "pelican" not in caplog.text

    caplog.clear()
    with caplog.at_level(logging.INFO):
        await warm_up(started(ScriptedEngine()), settings("hi", data.with_name("other")))
    assert f"{data.with_name('other')} is not there" in caplog.text
    assert "the greeting and 0 questions" in caplog.text


async def test_a_failing_warm_up_is_told_and_not_fatal(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        await warm_up(started(ScriptedEngine()), settings("fail now"))
    assert "warm-up failed" in caplog.text


async def test_a_greeting_that_does_not_fit_is_told_and_not_fatal(
    caplog: pytest.LogCaptureFixture,
) -> None:
    engine = ScriptedEngine()
    await warm_up(started(engine), settings("x" * 200))
    assert "warm-up failed" in caplog.text
    assert not engine.calls


async def test_an_engine_that_dies_of_its_warm_up_does_not_start(data: Path) -> None:
    with pytest.raises(EngineDead):
        await warm_up(started(ScriptedEngine()), settings("die now"))
    write(data, "a", "die now")
    with pytest.raises(EngineDead):
        await warm_up(started(ScriptedEngine()), settings("hi", data))


async def test_a_warm_up_without_end_is_given_up(
    data: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write(data, "hold it")
    await warm_up(started(ScriptedEngine()), settings("hi", data), limit_s=0.2)
    assert "warm-up given up after 0.2 s, 9 prompts run" in caplog.text


async def test_a_stop_ends_it() -> None:
    engine = ScriptedEngine()
    running = asyncio.create_task(warm_up(started(engine), settings("hold it")))
    await until(lambda: "hold it" in engine.running_texts)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


async def test_prompts_are_built_as_those_of_the_first_seeds_face() -> None:
    seen: list[Req] = []

    class Watched(PlainPrompts):
        async def build(self, req: Req, max_model_len: int) -> EnginePrompt:
            seen.append(req)
            return await super().build(req, max_model_len)

    await warm_up(Started(ScriptedEngine(), Watched(), ()), settings("hi"))
    assert all(req.delivery.route is not None and req.system_prompt for req in seen)
    assert len({req.id for req in seen}) == len(seen) == 9


def test_every_text_is_in_one_batch_and_none_is_larger_than_the_engine() -> None:
    texts = [str(n) for n in range(20)]
    first, lengths, *rest = batches(texts, slots=6)
    assert (list(first), len(lengths)) == (["0"], 6)
    assert [text for batch in rest for text in batch] == texts[1:]
    assert max(map(len, rest)) == 6
