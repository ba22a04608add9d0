"""What travels: the request, its record in the broker, its outcome and its text. Frozen; nothing here does I/O.

No `repr` shows a prompt or an answer: what gets into a log or a traceback tells their lengths alone.
`Req` is filled by the front door alone; `Record` and `Outcome` are packed by the broker's scripts;
`Report` and `Body` come from the worker.
"""

from __future__ import annotations

import re
from enum import IntEnum, StrEnum
from typing import Any, Literal, TypeVar

import msgspec

from shared.errors import CodecError
from shared.sampling import SamplingParams
from shared.status import RECORD_STATES, ReqStatus

T = TypeVar("T")
SCHEMA_VERSION = 1
REQUEST_ID = re.compile(r"[a-z0-9-]{1,32}\.[0-9]{1,4}-[a-z0-9]{1,64}(\.[0-9]{1,6})?")
_PLACE = re.compile(r"[a-z0-9-]{1,32}\.[0-9]{1,4}-")


class Priority(IntEnum):
    """Lanes; the lower number goes first, as in vLLM, until age evens it out."""

    interactive = 0
    standard = 1
    batch = 2


class Message(msgspec.Struct, frozen=True, omit_defaults=True):
    """One turn of a chat, as OpenAI's: `role` is system, user, assistant or tool."""

    role: str
    content: str
    name: str | None = None

    def __repr__(self) -> str:
        return f"Message(role={self.role!r}, content_len={len(self.content)})"


class Trim(msgspec.Struct, frozen=True):
    """The short-answer rules, decided at intake so that applying them needs the text alone."""

    cut_examples: bool
    max_sentences: int


class Delivery(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the front door needs to render an answer long after the request is gone."""

    trim: Trim | None = None
    metadata: dict[str, Any] = {}
    route: str | None = None
    retried_from: str | None = None
    on_disconnect: Literal["cancel", "continue"] = "cancel"


class Req(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One accepted request, complete when queued (but for the text of its predecessors).

    Either `prompt` or `messages` is given. `prompt` becomes the user turn of the chat template with
    `system_prompt` before it, unless `raw`. Times are durations in seconds, counted by the
    broker's clock from the submit. `cost_tokens` is the estimate of prompt plus the budget.
    """

    id: str
    sampling: SamplingParams
    bucket_key: str
    digest: str
    # By a factory, since a plain default is left out of the bytes, and the version must be in them.
    v: int = msgspec.field(default_factory=lambda: SCHEMA_VERSION)
    tenant: str = "anonymous"
    prompt: str | None = None
    messages: tuple[Message, ...] | None = None
    system_prompt: str | None = None
    raw: bool = False
    delivery: Delivery = Delivery()
    priority: Priority = Priority.standard
    cost_tokens: int = 1
    queue_timeout_s: float = 3600.0
    timeout_s: float = 3600.0
    stream: bool = False
    on_worker_loss: Literal["error", "restart"] = "error"
    depends_on: tuple[str, ...] = ()
    webhook: str | None = None
    lora: str | None = None
    chat_template_kwargs: dict[str, Any] = {}
    traceparent: str | None = None

    @property
    def parent(self) -> str | None:
        return parent_of(self.id)

    @property
    def prompt_len(self) -> int:
        """Characters of the prompt, or of all messages."""
        if self.prompt is not None:
            return len(self.prompt)
        return sum(len(message.content) for message in self.messages or ())

    def __repr__(self) -> str:
        return f"Req(id={short(self.id)}, prompt_len={self.prompt_len})"


class Usage(msgspec.Struct, frozen=True, omit_defaults=True):
    """Tokens; `cached_tokens` are those of the prompt that the engine's prefix cache held,
    `reasoning_tokens` those of the completion that went into reasoning.
    """

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    reasoning_tokens: int = 0

    @property
    def total_tokens(self) -> int:
        return self.prompt_tokens + self.completion_tokens


class FinishReason(StrEnum):
    """vLLM's words; `stop` also for an end-of-sequence token."""

    stop = "stop"
    length = "length"
    abort = "abort"
    error = "error"


class Report(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the worker says of a run besides its text. Seconds are from the worker's monotonic clock."""

    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None
    usage: Usage = Usage()
    inference_s: float = 0.0
    first_token_s: float | None = None
    batch_id: str | None = None
    batch_size: int | None = None
    bucket_key: str | None = None
    engine: str | None = None


class Body(msgspec.Struct, frozen=True, omit_defaults=True):
    """The answer itself, kept apart because it lives shorter than what is known about it."""

    text: str
    token_ids: tuple[int, ...] = ()
    reasoning: str | None = None
    logprobs: list[dict[str, Any]] | None = None

    def __repr__(self) -> str:
        return f"Body(output_len={len(self.text)}, n_tokens={len(self.token_ids)})"


class Chunk(msgspec.Struct, frozen=True, omit_defaults=True):
    """One piece of a stream; `offset` counts code points from the start of the attempt, `token` is its grant's."""

    attempt: int
    offset: int
    text: str
    token: str = ""

    def __repr__(self) -> str:
        return f"Chunk(attempt={self.attempt}, offset={self.offset}, text_len={len(self.text)})"


class Event(msgspec.Struct, frozen=True, array_like=True):
    """One step of a request's life, by the server's clock."""

    at_ms: int
    kind: str
    detail: str = ""


class Record(msgspec.Struct, frozen=True, array_like=True):
    """A live request as the scripts keep it. The order is the wire order; see lua/prelude.lua."""

    v: int
    state: str
    entry_id: str
    lane: int
    tenant: str
    cost_tokens: int
    submitted_ms: int
    deadline_ms: int
    queue_until_ms: int
    worker: str
    token: str
    started_ms: int
    grants: int
    crashes: int
    attempts: int
    apis: list[str]
    delivery_json: str
    digest: str
    parent: str
    depends_on: list[str]
    webhook: str
    events: list[Event]
    traceparent: str
    claimed_ms: int
    tag: float = 0.0
    held: int = 0
    not_before_ms: int = 0
    weight: float = 1

    @property
    def status(self) -> ReqStatus:
        return RECORD_STATES[self.state]


class Outcome(msgspec.Struct, frozen=True, array_like=True):
    """How a request ended, as the scripts keep it. The order is the wire order; see lua/prelude.lua."""

    v: int
    state: str
    code: str
    message: str
    worker: str
    token: str
    attempts: int
    crashes: int
    submitted_ms: int
    started_ms: int
    ended_ms: int
    digest: str
    tenant: str
    parent: str
    delivery_json: str
    report_json: str
    events: list[Event]
    n_children: int = 0
    grants: int = 0

    @property
    def status(self) -> ReqStatus:
        return RECORD_STATES[self.state]

    @property
    def report(self) -> Report:
        return _decode_json(self.report_json, Report) if self.report_json else Report()

    @property
    def delivery(self) -> Delivery:
        return decode_delivery(self.delivery_json)


def short(request_id: str) -> str:
    """`...wbwbaq4x.7`: the last eight characters of its key, and its place in its list.

    The second seed shows the first eight. Of ours those tell the second in which it was made, so they are alike in
    every line of a burst; these are the ones that differ.
    """
    parent = parent_of(request_id)
    key, index = (request_id, "") if parent is None else (parent, request_id[len(parent) :])
    place = _PLACE.match(key)
    key = key[place.end() :] if place else key
    return (f"...{key[-8:]}" if len(key) > 8 else key) + index


def decode_delivery(text: str) -> Delivery:
    return _decode_json(text, Delivery) if text else Delivery()


def _decode_json(text: str, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(text, type=kind)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raw = text.encode("utf-8", "surrogatepass")
        raise CodecError(f"not a {kind.__name__.lower()}: {error}", raw) from error


def parent_of(request_id: str) -> str | None:
    """`<queue>.<shard>-<key>.<index>` is a child of `<queue>.<shard>-<key>`; None for all else."""
    return request_id.rpartition(".")[0] if _is_child(request_id) else None


def child_index(request_id: str) -> int | None:
    """The place of a child in its list, from 0; None for a request that is no child."""
    return int(request_id.rpartition(".")[2]) if _is_child(request_id) else None


def _is_child(request_id: str) -> bool:
    match = REQUEST_ID.fullmatch(request_id)
    return match is not None and match[1] is not None


def queue_and_shard(request_id: str) -> tuple[str, int] | None:
    """Where an id lives; None if it is no id of ours."""
    if not REQUEST_ID.fullmatch(request_id):
        return None
    queue, _, rest = request_id.partition(".")
    return queue, int(rest.partition("-")[0])
