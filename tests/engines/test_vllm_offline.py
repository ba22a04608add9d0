"""What is particular to the offline `LLM`: its owner, and whom a failure costs what. With vLLM's own records and a
core that says what it is told; what a real one does is the contract's.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import Future
from queue import Queue
from types import SimpleNamespace
from typing import Any

import pytest
import pytest_asyncio

from shared.request import FinishReason
from shared.sampling import SamplingParams
from worker.engines.base import EngineDead, EngineError, EngineOutput, EnginePrompt
from worker.engines.vllm_offline import VllmOfflineEngine, fail_open_calls
from worker.settings import EngineSettings

pytestmark = [
    pytest.mark.filterwarnings("ignore"),  # vLLM warns while it is imported
    pytest.mark.timeout(60),
]
PARAMS = SamplingParams(max_tokens=8, min_tokens=0, temperature=0)


@pytest.fixture(autouse=True)
def vllm() -> Any:
    return pytest.importorskip("vllm")


def output(rid: str, text: str, finish_reason: str | None = "stop") -> Any:
    from vllm.outputs import CompletionOutput, RequestOutput

    made = CompletionOutput(
        index=0,
        text=text,
        token_ids=[5],
        cumulative_logprob=None,
        logprobs=None,
        finish_reason=finish_reason,
    )
    return RequestOutput(rid, None, [1], None, [made], finished=finish_reason is not None)


class Core:
    """The part of vLLM's engine that is used, with its process. A step hands over what was `said` next;
    `refuses` are the ids that it takes in badly, and `is_stubborn` one that drops none.
    """

    def __init__(self) -> None:
        self.said: Queue[Any] = Queue()
        self.added: list[str] = []
        self.dropped: list[str] = []
        self.refuses: frozenset[str] = frozenset()
        self.is_stubborn = False
        self.is_shut_down = False
        self.process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
        self._sentinel = os.pidfd_open(self.process.pid)
        manager = SimpleNamespace(sentinels=lambda: [self._sentinel])
        self.engine_core = SimpleNamespace(
            resources=SimpleNamespace(engine_manager=manager),
            outputs_queue=self.said,
            shutdown=self._shut_down,
        )
        self.renderer = SimpleNamespace(shutdown=lambda: None)
        self.output_processor = SimpleNamespace(request_states={})

    def _shut_down(self, timeout_s: float) -> None:
        self.is_shut_down = True

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._sentinel)

    def has_unfinished_requests(self) -> bool:
        return len(self.added) > len(self.dropped)

    def add_request(self, rid: str, prompt: Any, params: Any) -> str:
        if rid in self.refuses:
            raise RuntimeError("no room")
        self.added.append(rid)
        return f"{rid}-inside"

    def abort_request(self, request_ids: Sequence[str]) -> None:
        if self.is_stubborn:
            raise RuntimeError("not now")
        self.dropped += [rid for rid in request_ids if rid in self.added]

    def step(self) -> list[Any]:
        said = self.said.get()
        if isinstance(said, Exception):
            raise said
        self.dropped += [found.request_id for found in said if found.finished]
        return list(said)


class Told(VllmOfflineEngine):
    """Loads nothing."""

    def __init__(self, core: Core) -> None:
        super().__init__(EngineSettings.load(), {"max_num_seqs": 8})
        self.core = core

    def _load(self) -> None:
        self._llm = SimpleNamespace(llm_engine=self.core)


@pytest_asyncio.fixture
async def engine() -> AsyncIterator[Told]:
    core = Core()
    engine = Told(core)
    await engine.start()
    try:
        yield engine
    finally:
        async with asyncio.timeout(10):
            await engine.close()
        core.end()
        assert core.is_shut_down


def ask(engine: Told, *ids: str) -> asyncio.Task[list[EngineOutput]]:
    async def pieces() -> list[EngineOutput]:
        prompts = [EnginePrompt(rid, (1,)) for rid in ids]
        return [piece async for piece in engine.generate(prompts, PARAMS, stream=False)]

    return asyncio.create_task(pieces())


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not holds():
            await asyncio.sleep(0.002)


async def test_what_cannot_be_told_of_one_request_costs_that_one_alone(engine: Told) -> None:
    asked = ask(engine, "a", "b")
    await until(lambda: engine.core.added == ["a", "b"])
    odd = output("a", "x", finish_reason="a reason of next year")
    engine.core.said.put([odd, output("b", "fine")])
    [one, other] = await asked
    assert isinstance(one.error, Exception)
    assert other.text == "fine"
    assert engine.failure is None


@pytest.mark.parametrize("is_stubborn", [False, True])
async def test_a_request_that_is_taken_in_badly_is_told_even_if_it_cannot_be_dropped(
    engine: Told, is_stubborn: bool
) -> None:
    engine.core.refuses, engine.core.is_stubborn = frozenset({"a"}), is_stubborn
    asked = ask(engine, "a", "b")
    await until(lambda: engine.core.added == ["b"])
    engine.core.said.put([output("b", "fine")])
    one, other = await asked
    assert isinstance(one.error, EngineError)
    assert (other.text, engine.failure) == ("fine", None)


async def test_an_abort_of_what_vllm_has_forgotten_ends_that_request_alone(engine: Told) -> None:
    asked = ask(engine, "a", "b")
    await until(lambda: engine.core.added == ["a", "b"])
    engine.core.is_stubborn = True
    await engine.abort(["a"])
    engine.core.said.put([])  # the owner looks between two steps
    engine.core.said.put([output("b", "fine")])
    one, other = await asked
    assert (one.request_id, one.finish_reason) == ("a", FinishReason.abort)
    assert (other.text, engine.failure) == ("fine", None)


async def test_answers_that_came_before_the_end_are_told_before_it(engine: Told) -> None:
    """They are finished, so whoever asked is no suspect."""
    first, second = ask(engine, "a"), ask(engine, "b")
    await until(lambda: sorted(engine.core.added) == ["a", "b"])
    owner_is_busy = Future[None]()
    engine._inbox.put(owner_is_busy.result)
    engine.core.said.put([])
    await until(lambda: engine._inbox.empty())
    engine.core.process.kill()
    await until(lambda: not engine._inbox.empty())
    # The owner hears of the death before it has looked at the answer.
    last = engine.core.said.get_nowait()
    engine.core.said.put([output("a", "in time")])
    engine.core.said.put(last)
    owner_is_busy.set_result(None)
    [piece] = await first
    assert piece.text == "in time"
    with pytest.raises(EngineDead):
        await second
    assert engine.failure is not None


async def test_a_death_while_nothing_runs_shows(engine: Told) -> None:
    engine.core.process.kill()
    await until(lambda: engine.failure is not None)
    with pytest.raises(EngineDead):
        await ask(engine, "a")


async def test_a_core_that_says_nothing_any_more_does_not_hold_up_the_end(engine: Told) -> None:
    """It is waited for in a step; the fixture closes the engine, with a limit."""
    asked = ask(engine, "a")
    await until(lambda: engine.core.added == ["a"])
    await engine.close()
    with pytest.raises(EngineDead, match="closed"):
        await asked


async def test_a_core_that_dies_while_the_llm_is_made_ends_the_start() -> None:
    """vLLM's own calls of that time wait without a limit; whoever holds its client is still being made."""
    from vllm.v1.engine.core_client import BackgroundResources, SyncMPClient

    answer: Future[None] = Future()

    class Dying(VllmOfflineEngine):
        def _load(self) -> None:
            core = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
            client = SyncMPClient.__new__(SyncMPClient)
            client.resources = BackgroundResources(ctx=None)
            client.utility_results = {1: answer}
            fail_open_calls()
            assert not answer.done(), "it lives"
            self._launch.look()
            core.kill()
            core.wait()
            client.resources.engine_dead = True
            answer.result(30)

    engine = Dying(EngineSettings.load(), {"max_num_seqs": 8})
    engine._launch.look()
    with pytest.raises(EngineError, match="did not start: EngineDeadError"):
        await engine.start()
