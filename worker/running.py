"""One claimed request from its prompt to its end: the pieces of its answer, and what is made of them.

Knows neither queue nor engine; `generate.py` moves it along.
"""

from __future__ import annotations

import asyncio
import time
from enum import Enum, auto

from shared.request import Body, FinishReason, Report, Req, Usage
from worker.batcher import Item, MicroBatch
from worker.engines.base import EngineOutput, EnginePrompt
from worker.prompt import LONG_CHARS
from worker.think import Answer, Thinking


class Stop(Enum):
    """Why a run is cut short: its lease is lost, its time is over, or the worker stops."""

    LOST = auto()
    DEADLINE = auto()
    RELEASE = auto()


class Running:
    """One request from its prompt to its end. The pieces gather here until the last."""

    __slots__ = (
        "answer",
        "batch",
        "cached",
        "first_token_s",
        "has_left",
        "ids",
        "is_ending",
        "is_in_engine",
        "item",
        "n_reasoning",
        "prompt",
        "started_at",
        "stop",
        "text",
        "thinking",
        "timer",
    )

    def __init__(
        self, item: Item, batch: MicroBatch, prompt: EnginePrompt, thinking: Thinking
    ) -> None:
        self.item = item
        self.batch = batch
        self.prompt = prompt
        self.thinking = thinking
        self.started_at = time.monotonic()
        self.stop: Stop | None = None
        self.timer: asyncio.TimerHandle | None = None
        self.is_in_engine = False
        self.is_ending = False
        self.has_left = False
        self.begin_again()

    def begin_again(self) -> None:
        self.text: list[str] = []
        self.answer: Answer | None = None  # of the text so far, once it was asked for
        self.ids: list[int] = []
        self.cached = 0
        self.n_reasoning = 0
        self.first_token_s: float | None = None

    def take(self, piece: EngineOutput) -> None:
        self.text.append(piece.text)
        self.answer = None
        self.ids.extend(piece.token_ids)
        self.cached = piece.cached_tokens or self.cached
        if self.first_token_s is None:
            self.first_token_s = piece.first_token_s

    async def count_reasoning(self) -> None:
        """How many tokens of what came is reasoning; of a long text in a thread, as a long prompt's are."""
        if not self.ids:
            return
        answer, n_tokens = self._answer(), len(self.ids)
        if len(answer.spent) < LONG_CHARS:
            self.n_reasoning = self.thinking.tokens(answer, n_tokens)
        else:
            self.n_reasoning = await asyncio.to_thread(self.thinking.tokens, answer, n_tokens)

    def body(self, piece: EngineOutput) -> Body:
        answer = self._answer()
        echo = echoed(self.item.req) if self.item.req.sampling.echo else ""
        return Body(
            text=echo + answer.text,
            token_ids=tuple(self.ids),
            reasoning=answer.reasoning,
            logprobs=piece.logprobs,
        )

    def report(
        self, engine: str, finish_reason: FinishReason | None, stop_reason: str | int | None
    ) -> Report:
        return Report(
            finish_reason=finish_reason,
            stop_reason=stop_reason,
            usage=Usage(len(self.prompt.token_ids), len(self.ids), self.cached, self.n_reasoning),
            inference_s=time.monotonic() - self.started_at,
            first_token_s=self.first_token_s,
            batch_id=self.batch.id,
            batch_size=len(self.batch),
            bucket_key=self.item.req.bucket_key,
            engine=engine,
        )

    def _answer(self) -> Answer:
        """What came so far, its reasoning apart."""
        if self.answer is None:
            self.answer = self.thinking.split("".join(self.text), self.prompt.text)
        return self.answer


def echoed(req: Req) -> str:
    """What the client itself said last; templates and system prompts are not for its eyes."""
    if req.prompt is not None:
        return req.prompt
    return req.messages[-1].content if req.messages else ""
