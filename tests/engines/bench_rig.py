"""An engine with its prompts, and the runs that the tests ask of it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import count

import psutil

from shared.request import FinishReason, Req
from shared.sampling import SamplingParams
from shared.worker_info import StartStep
from worker.engines.base import Engine, EngineOutput, EnginePrompt
from worker.generate import Prompts

_numbers = count()


@dataclass
class Answer:
    """All pieces of one request."""

    pieces: list[EngineOutput] = field(default_factory=list)

    @property
    def text(self) -> str:
        return "".join(piece.text for piece in self.pieces)

    @property
    def ids(self) -> tuple[int, ...]:
        return tuple(token_id for piece in self.pieces for token_id in piece.token_ids)

    @property
    def finish_reason(self) -> FinishReason | None:
        return self.pieces[-1].finish_reason

    @property
    def stop_reason(self) -> str | int | None:
        return self.pieces[-1].stop_reason

    @property
    def error(self) -> Exception | None:
        return self.pieces[-1].error


def processes_below() -> set[psutil.Process]:
    """But for Python's own tracker of shared memory, which ends with the test run."""
    return {
        process
        for process in psutil.Process().children(recursive=True)
        if process.is_running() and "resource_tracker" not in " ".join(process.cmdline())
    }


def still_running(processes: Iterable[psutil.Process]) -> list[psutil.Process]:
    """Those that are no mere entry in the table, whoever is their parent by now."""
    return [
        process
        for process in processes
        if process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    ]


@dataclass(frozen=True)
class Rig:
    """`processes` came with the engine: its core and what is below that."""

    engine: Engine
    prompts: Prompts
    report: tuple[StartStep, ...] = ()
    processes: frozenset[psutil.Process] = frozenset()

    async def prompt(self, text: str, params: SamplingParams) -> EnginePrompt:
        req = Req(
            id=f"test.0-{next(_numbers)}",
            sampling=params,
            bucket_key=params.bucket_key,
            digest="",
            prompt=text,
        )
        return await self.prompts.build(req, self.engine.max_model_len)

    def pieces(
        self, prompts: Sequence[EnginePrompt], params: SamplingParams, *, stream: bool = False
    ) -> AsyncIterator[EngineOutput]:
        return self.engine.generate(prompts, params, stream=stream)

    async def answers(
        self, texts: Sequence[str], params: SamplingParams, *, stream: bool = False
    ) -> list[Answer]:
        """In the order of the texts."""
        prompts = [await self.prompt(text, params) for text in texts]
        return await self.run(prompts, params, stream=stream)

    async def run(
        self, prompts: Sequence[EnginePrompt], params: SamplingParams, *, stream: bool = False
    ) -> list[Answer]:
        found: dict[str, Answer] = defaultdict(Answer)
        async for piece in self.pieces(prompts, params, stream=stream):
            found[piece.request_id].pieces.append(piece)
        assert found.keys() == {prompt.request_id for prompt in prompts}
        return [found[prompt.request_id] for prompt in prompts]

    @property
    def core(self) -> psutil.Process:
        return min(self.processes, key=lambda process: process.create_time())

    async def answer(self, text: str, params: SamplingParams, *, stream: bool = False) -> Answer:
        [answer] = await self.answers([text], params, stream=stream)
        return answer
