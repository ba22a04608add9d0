"""The rows of one call of `model.generate`: each ends by itself, whatever the others do. Knows no model."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from shared.request import FinishReason
from worker.engines.base import EngineOutput, EnginePrompt
from worker.engines.row_text import RowText
from worker.engines.stop_tokens import Stops

Emit = Callable[[EngineOutput], None]


class Row:
    """One request of a call. `is_aborted` is set from the loop and read in the engine's thread."""

    __slots__ = (
        "began",
        "first_token_s",
        "is_aborted",
        "is_over",
        "limit",
        "n_given",
        "prompt",
        "text",
    )

    def __init__(self, prompt: EnginePrompt, text: RowText, limit: int) -> None:
        self.prompt = prompt
        self.text = text
        self.limit = limit
        self.n_given = 0
        self.began = time.monotonic()
        self.first_token_s: float | None = None
        self.is_aborted = False
        self.is_over = False

    def piece(
        self, reason: FinishReason | None = None, stop_reason: str | int | None = None
    ) -> EngineOutput:
        """What is new; with a reason, the last piece."""
        start, self.n_given = self.n_given, len(self.text.ids)
        self.is_over = reason is not None
        ids = tuple(self.text.ids[start:])
        return EngineOutput(
            self.prompt.request_id,
            self.text.take(),
            ids,
            reason,
            stop_reason,
            first_token_s=self.first_token_s,
        )


class RowWatch:
    """transformers asks it after each step which rows are over; so it sees each token as it comes."""

    def __init__(
        self,
        on_step: Callable[[], None],
        rows: Sequence[Row],
        ends: frozenset[int],
        min_tokens: int,
        stops: Stops,
        stream: bool,
        emit: Emit,
    ) -> None:
        self._on_step = on_step
        self._rows = rows
        self._ends = ends
        self._min_tokens = min_tokens
        self._stops = stops
        self._stream = stream
        self._emit = emit

    def __call__(self, input_ids: Any, scores: Any, **kwargs: Any) -> Any:
        import torch

        self._on_step()
        for row, token_id in zip(self._rows, input_ids[:, -1].tolist(), strict=True):
            if not row.is_over:
                self._take(row, token_id)
        over = [row.is_over for row in self._rows]
        return torch.tensor(over, dtype=torch.bool, device=input_ids.device)

    def _take(self, row: Row, token_id: int) -> None:
        text = row.text
        if row.first_token_s is None:
            row.first_token_s = time.monotonic() - row.began
        if token_id in self._ends and len(text.ids) >= self._min_tokens:
            text.end(token_id)
            self._emit(row.piece(FinishReason.stop, self._stops.reason(token_id)))
        elif (stop := text.add(token_id)) is not None:
            self._emit(row.piece(FinishReason.stop, stop))
        elif row.is_aborted:
            text.end()
            self._emit(row.piece(FinishReason.abort))
        elif len(text.ids) >= row.limit:
            text.end()
            self._emit(row.piece(FinishReason.length))
        elif self._stream:
            self._emit(row.piece())
