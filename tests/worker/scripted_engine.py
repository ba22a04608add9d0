"""An engine for tests of the shell around it: answers at once unless a prompt's text scripts something else."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

from shared.errors import EngineDead, EngineError, InvalidRequest, PromptTooLong
from shared.request import FinishReason, Req
from shared.sampling import SamplingParams
from worker.engines.base import Capabilities, EngineOutput, EnginePrompt
from worker.think import Thinking


class ScriptedEngine:
    """`hold …` runs until aborted or `let_go`; `fail …` fails alone; `die …` kills the engine; `wedge …` hangs."""

    name = "scripted"
    capabilities = Capabilities(
        fields=frozenset(SamplingParams.__struct_fields__), can_abort=True, can_stream=False
    )

    def __init__(self, slots: int = 8) -> None:
        self._slots = slots
        self.progress_count = 0
        self.calls: list[list[str]] = []
        self.params: list[SamplingParams] = []
        self.aborted: list[str] = []
        self.released = asyncio.Event()
        self.failure: EngineDead | None = None
        self._aborts: dict[str, asyncio.Event] = {}
        self.running_texts: set[str] = set()

    async def start(self) -> None:
        return None

    @property
    def max_model_len(self) -> int:
        return 100

    @property
    def slots(self) -> int:
        return self._slots

    @property
    def progress(self) -> int:
        return self.progress_count

    def let_go(self) -> None:
        self.released.set()

    async def generate(
        self, prompts: Sequence[EnginePrompt], params: SamplingParams, *, stream: bool
    ) -> AsyncIterator[EngineOutput]:
        self.calls.append([prompt.text for prompt in prompts])
        self.params.append(params)
        done: asyncio.Queue[EngineOutput | EngineDead] = asyncio.Queue()
        tasks = [asyncio.create_task(self._one(prompt, done)) for prompt in prompts]
        try:
            for _ in prompts:
                piece = await done.get()
                if isinstance(piece, EngineDead):
                    raise piece
                self.progress_count += 1
                yield piece
        finally:
            for task in tasks:
                task.cancel()

    async def _one(
        self, prompt: EnginePrompt, done: asyncio.Queue[EngineOutput | EngineDead]
    ) -> None:
        rid, text = prompt.request_id, prompt.text
        abort = self._aborts[rid] = asyncio.Event()
        self.running_texts.add(text)
        reason = FinishReason.stop
        if text.startswith("die"):
            self.failure = EngineDead("the engine died")
            done.put_nowait(self.failure)
            return
        if text.startswith("fail"):
            done.put_nowait(EngineOutput(rid, error=EngineError("it failed")))
            return
        if text.startswith("wedge"):
            await asyncio.Event().wait()
        if text.startswith("hold"):
            waits = [asyncio.create_task(event.wait()) for event in (abort, self.released)]
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            for wait in waits:
                wait.cancel()
            reason = FinishReason.abort if abort.is_set() else reason
        self.running_texts.discard(text)
        done.put_nowait(EngineOutput(rid, f"A({text})", (1, 2, 3), reason))

    async def abort(self, request_ids: Sequence[str]) -> None:
        self.aborted += request_ids
        for rid in request_ids:
            if rid in self._aborts:
                self._aborts[rid].set()

    def effective_args(self) -> dict[str, Any]:
        return {}

    async def close(self) -> None:
        return None


class PlainPrompts:
    """The prompt's own text, one token a character; more than 100 are too long."""

    thinking = Thinking()

    async def build(self, req: Req, max_model_len: int) -> EnginePrompt:
        text = req.prompt or ""
        if len(text) > max_model_len:
            raise PromptTooLong(f"the prompt has {len(text)} tokens, {max_model_len} fit")
        if text == "bad template":
            raise InvalidRequest("no such role", param="messages")
        return EnginePrompt(req.id, tuple(range(len(text))), text)
