"""No model: answers `A(<last user text>)`, at once or as slowly as asked. For tests of speed and scale.

It says what it is: nothing here looks at sampling beyond limits and stops. Its tokens are three
characters each, so that counts come out as for a real model.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from typing import Any

import msgspec

from shared.request import FinishReason
from shared.sampling import SamplingParams
from shared.stops import StopMatcher
from worker.engines.base import Capabilities, EngineDead, EngineOutput, EnginePrompt
from worker.engines.row_text import stop_table
from worker.settings import EngineSettings

CHARS = 3  # of one token
POINT_BITS = 21  # of one character
TURN = "\x1e"
USER, ASSISTANT = f"{TURN}user\n", f"{TURN}assistant\n"
MAX_MODEL_LEN = 32_768


class SimulatedTokenizer:
    """Packs three characters in an id, so that it needs no vocabulary and forgets nothing."""

    chat_template = "simulated"
    bos_token: str | None = None

    def apply_chat_template(
        self,
        conversation: Sequence[dict[str, str]],
        *,
        tokenize: bool,
        add_generation_prompt: bool,
        **kwargs: Any,
    ) -> str:
        turns = "".join(f"{TURN}{turn['role']}\n{turn['content']}" for turn in conversation)
        return turns + ASSISTANT if add_generation_prompt else turns

    def encode(self, text: str, *, add_special_tokens: bool = False) -> tuple[int, ...]:
        points = [ord(char) + 1 for char in text]
        points += [0] * (-len(points) % CHARS)
        thirds = zip(points[::CHARS], points[1::CHARS], points[2::CHARS], strict=True)
        return tuple([a | b << POINT_BITS | c << 2 * POINT_BITS for a, b, c in thirds])

    def decode(self, ids: Sequence[int]) -> str:
        return "".join(map(_unpack, ids))


def _unpack(token_id: int) -> str:
    chars = []
    while token_id:
        chars.append(chr((token_id & (1 << POINT_BITS) - 1) - 1))
        token_id >>= POINT_BITS
    return "".join(chars)


class _Row:
    """One answer, known from the start; `given` counts the tokens that went out."""

    __slots__ = (
        "finish_reason",
        "first_token_s",
        "given",
        "ids",
        "is_aborted",
        "is_over",
        "request_id",
        "stop_reason",
        "text",
    )

    def __init__(
        self, request_id: str, answer: str, params: SamplingParams, first_token_s: float
    ) -> None:
        natural = -(-len(answer) // CHARS)
        n_tokens = min(max(natural, params.min_tokens), params.max_tokens)
        if params.ignore_eos:
            n_tokens = params.max_tokens
        is_cut = params.ignore_eos or natural > params.max_tokens
        if n_tokens > natural:
            answer *= n_tokens * CHARS // len(answer) + 1
        if n_tokens != natural:
            answer = answer[: n_tokens * CHARS]
        stop, end = _first_stop(answer, params)
        self.request_id = request_id
        self.first_token_s = first_token_s
        self.stop_reason = stop
        self.finish_reason = FinishReason.length if is_cut and not stop else FinishReason.stop
        self.text = answer[:end]
        # The token that completes the stop string is made, though not all of it is shown.
        self.ids = SimulatedTokenizer().encode(answer)[: -(-(end + len(stop or "")) // CHARS)]
        self.given = 0
        self.is_aborted = False
        self.is_over = False

    def piece(self, until: int) -> EngineOutput:
        """Tokens up to `until`; the last piece when that is all or the row was aborted."""
        start, self.given = self.given, min(until, len(self.ids))
        self.is_over = self.is_aborted or self.given == len(self.ids)
        is_cut = self.is_aborted and self.given < len(self.ids)
        return EngineOutput(
            self.request_id,
            self.text[start * CHARS : self.given * CHARS],
            self.ids[start : self.given],
            finish_reason=(FinishReason.abort if is_cut else self.finish_reason)
            if self.is_over
            else None,
            stop_reason=self.stop_reason if self.is_over and not is_cut else None,
            first_token_s=self.first_token_s if self.given else None,
        )


class SimulatedEngine:
    name = "simulated"
    capabilities = Capabilities(
        fields=frozenset(SamplingParams.__struct_fields__) - {"echo", "logprobs"},
        can_abort=True,
        can_stream=True,
    )

    def __init__(self, settings: EngineSettings) -> None:
        self._first_s = settings.sim_first_token_s
        self._token_s = settings.sim_token_s
        self._slots = settings.sim_slots
        self._max_model_len = settings.max_model_len or MAX_MODEL_LEN
        self._rows: dict[str, tuple[_Row, asyncio.Event]] = {}
        self._progress = 0

    async def start(self) -> None:
        """Nothing to load."""

    @property
    def max_model_len(self) -> int:
        return self._max_model_len

    @property
    def slots(self) -> int:
        return self._slots

    @property
    def progress(self) -> int:
        return self._progress

    @property
    def failure(self) -> EngineDead | None:
        return None

    async def generate(
        self, prompts: Sequence[EnginePrompt], params: SamplingParams, *, stream: bool
    ) -> AsyncIterator[EngineOutput]:
        began = time.monotonic()
        rows = [
            _Row(p.request_id, answer_to(p.text), self._fitting(p, params), self._first_s)
            for p in prompts
        ]
        bell = asyncio.Event()
        self._rows.update({row.request_id: (row, bell) for row in rows})
        try:
            while rows:
                step = self._next_step(rows, stream)
                if stream or self._due_s(step) > 0:
                    await self._wait(began + self._due_s(step), bell)
                    bell.clear()
                made = self._made(time.monotonic() - began, step)
                self._progress += 1
                for row in rows:
                    is_due = row.is_aborted or made >= (row.given + 1 if stream else len(row.ids))
                    if is_due:
                        yield row.piece(made)
                rows = [row for row in rows if not row.is_over]
        finally:
            for prompt in prompts:
                self._rows.pop(prompt.request_id, None)

    async def abort(self, request_ids: Sequence[str]) -> None:
        for request_id in request_ids:
            if request_id in self._rows:
                row, bell = self._rows[request_id]
                row.is_aborted = True
                bell.set()

    def effective_args(self) -> dict[str, Any]:
        return {"sim_first_token_s": self._first_s, "sim_token_s": self._token_s}

    async def close(self) -> None:
        """Nothing to give back."""

    def _fitting(self, prompt: EnginePrompt, params: SamplingParams) -> SamplingParams:
        """As a real model: where prompt and answer do not fit together, the answer ends early."""
        params = prompt.own(params)
        room = max(1, self._max_model_len - len(prompt.token_ids))
        if params.max_tokens <= room:
            return params
        return msgspec.structs.replace(
            params, max_tokens=room, min_tokens=min(params.min_tokens, room)
        )

    def _next_step(self, rows: Sequence[_Row], stream: bool) -> int:
        """How many tokens the row has that has something to say next."""
        return min(row.given + 1 if stream else len(row.ids) for row in rows)

    def _due_s(self, n_tokens: int) -> float:
        return self._first_s + (n_tokens - 1) * self._token_s

    def _made(self, elapsed_s: float, step: int) -> int:
        """Tokens of each row by now; without a delay, the whole answer but for streams."""
        if self._token_s > 0:
            if elapsed_s < self._first_s:
                return 0
            # The clock may stand a hair before the time that was slept for.
            return int((elapsed_s - self._first_s + 1e-6) / self._token_s) + 1
        return step if elapsed_s + 1e-6 >= self._first_s else 0

    async def _wait(self, until: float, bell: asyncio.Event) -> None:
        left_s = until - time.monotonic()
        if left_s <= 0:
            await asyncio.sleep(0)
            return
        try:
            async with asyncio.timeout(left_s):
                await bell.wait()
        except TimeoutError:
            return


def _first_stop(answer: str, params: SamplingParams) -> tuple[str | None, int]:
    """The stop string that ends the answer, and where the text ends then."""
    matcher = StopMatcher(stop_table(params.stop), min_tokens=params.min_tokens)
    end = 0
    for at in range(0, len(answer) if params.stop else 0, CHARS):
        text, stop = matcher.feed(answer[at : at + CHARS])
        end += len(text)
        if stop is not None:
            return stop, end
    return None, len(answer)


def answer_to(text: str) -> str:
    """`A(…)` around the last user turn, or around a text that has none."""
    last = text.rpartition(USER)[2].removesuffix(ASSISTANT)
    return f"A({last})"
