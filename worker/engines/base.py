"""The contract that every engine keeps: prompts in, pieces of text out, one stream per request.

An engine knows nothing of the queue. It applies sampling and stop rules; chat templates, think
blocks and results are others' work.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any, Protocol

import msgspec

from shared.errors import EngineDead, EngineError, PromptTooLong
from shared.request import FinishReason, short
from shared.sampling import SamplingParams

__all__ = [
    "Capabilities",
    "Engine",
    "EngineDead",
    "EngineError",
    "EngineOutput",
    "EnginePrompt",
    "PromptTooLong",
]


class EnginePrompt(msgspec.Struct, frozen=True):
    """`token_ids` as the model sees them, special tokens included, so that no engine adds its own.

    `max_tokens` is this row's own limit where it is not that of the call's parameters.
    """

    request_id: str
    token_ids: tuple[int, ...]
    text: str = ""
    max_tokens: int | None = None

    def own(self, params: SamplingParams) -> SamplingParams:
        """The call's parameters, with the limit of this row."""
        if self.max_tokens is None or self.max_tokens == params.max_tokens:
            return params
        return msgspec.structs.replace(params, max_tokens=self.max_tokens)

    def __repr__(self) -> str:
        size = f"text_len={len(self.text)}, n_tokens={len(self.token_ids)}"
        return f"EnginePrompt(id={short(self.request_id)}, {size}, max_tokens={self.max_tokens})"


class EngineOutput(msgspec.Struct, frozen=True):
    """One piece: `text` and `token_ids` are new since the piece before.

    The last piece has a `finish_reason`; `stop_reason` is the string or token id that matched, None for
    an end of the model's own that the request did not name. `error` is set instead when this request alone
    failed. `first_token_s`, on the last piece at the latest: from `generate` to the first token; None where
    there was none.
    """

    request_id: str
    text: str = ""
    token_ids: tuple[int, ...] = ()
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None
    cached_tokens: int = 0
    first_token_s: float | None = None
    logprobs: list[dict[str, Any]] | None = None
    error: Exception | None = None

    @property
    def is_last(self) -> bool:
        return self.finish_reason is not None or self.error is not None

    def __repr__(self) -> str:
        reason = self.finish_reason.value if self.finish_reason else None
        size = f"text_len={len(self.text)}, n_tokens={len(self.token_ids)}"
        error = type(self.error).__name__ if self.error else None
        end = f"finish_reason={reason}, error={error}"
        return f"EngineOutput(id={short(self.request_id)}, {size}, {end})"


class Capabilities(msgspec.Struct, frozen=True):
    """`fields`: names of SamplingParams that are honoured. `can_abort`: a run can be stopped midway.
    `rows_share`: fields that must be equal in one call of `generate`; empty where rows are free. Never
    `max_tokens`: each row of a call has its own.
    """

    fields: frozenset[str]
    can_abort: bool
    can_stream: bool
    rows_share: frozenset[str] = frozenset()


class Engine(Protocol):
    """Made by a factory in `worker.engines`; `start` loads, everything else is for a started engine."""

    name: str
    capabilities: Capabilities

    async def start(self) -> None:
        """Load the model. Raises EngineError with the engine's own words."""
        ...

    @property
    def max_model_len(self) -> int:
        """Most tokens of prompt and answer together."""
        ...

    @property
    def slots(self) -> int:
        """How many requests run at once."""
        ...

    @property
    def progress(self) -> int:
        """Grows while the engine works: steps or pieces so far. The stall watch reads it."""
        ...

    @property
    def failure(self) -> EngineDead | None:
        """Why it can serve no more, also while nothing runs; None while it can."""
        ...

    def generate(
        self, prompts: Sequence[EnginePrompt], params: SamplingParams, *, stream: bool
    ) -> AsyncIterator[EngineOutput]:
        """Run one micro-batch that shares `params`, but for a limit that a prompt brings itself; pieces of
        all prompts come interleaved.

        Without `stream` each request yields one last piece with its whole text. A request that the
        engine refuses yields a last piece with `error`; EngineDead is raised when nothing can go on.
        """
        ...

    async def abort(self, request_ids: Sequence[str]) -> None:
        """Stop these; each yields a last piece with finish_reason `abort`. Unknown ids are ignored."""
        ...

    def effective_args(self) -> dict[str, Any]:
        """The arguments really in force, for `/workers`."""
        ...

    async def close(self) -> None: ...
