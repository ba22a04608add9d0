"""The bodies that clients send: how they are read from bytes, checked and described in /openapi.json.

Sampling fields of the full face are not listed here: every field of `SamplingParams` is one.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from itertools import accumulate
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from api.system_prompt import MAX_CHARS
from shared.errors import InvalidRequest
from shared.sampling import SamplingParams, is_unicode

SAMPLING_FIELDS = frozenset(SamplingParams.__struct_fields__)
PriorityName = Literal["interactive", "standard", "batch"]
# What comes out of a few MiB of JSON can be hundreds of times as large, and what is nested without end ends
# in a RecursionError somewhere, so both are bounded before anything is decoded.
MAX_DEPTH = 64
MAX_PARTS = 32_768
MAX_MESSAGES = 1_024
MAX_PREDECESSORS = 16
MAX_DETAILS = 20
MAX_NAME_CHARS = 128
_NOT_STRUCTURE = bytes(set(range(256)) - set(b"[]{}:"))
_SOUND = frozenset({int, bool, type(None)})
_decoder = msgspec.json.Decoder()


class Malformed(InvalidRequest):
    """A body that failed its schema; `detail` is FastAPI's list of what is wrong where."""

    def __init__(self, message: str, *, param: str | None, detail: list[dict[str, Any]]) -> None:
        super().__init__(message, param=param)
        self.detail = detail


# One bad item is told: of a list of a million there would be a million complaints.
Texts = Annotated[list[str], Field(fail_fast=True)]
# Ids of requests, as a submit gave them out or a PUT named them.
Predecessors = Annotated[
    list[Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]{1,128}$")]],
    Field(fail_fast=True, max_length=MAX_PREDECESSORS),
]


class PredictBody(BaseModel):
    """Coerces as the first seed did: "12" and 12.0 are 12, true is 1. Unknown fields are ignored."""

    model_config = ConfigDict(extra="ignore", allow_inf_nan=False)

    prompt: str | Texts = Field(repr=False)
    max_new_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    repetition_penalty: float | None = None
    frequency_penalty: float | None = None
    stream: bool | None = None
    partial: bool | None = None
    trim: bool | None = None
    priority: PriorityName | None = None
    queue_timeout_s: float | None = Field(None, gt=0)
    timeout_s: float | None = Field(None, gt=0)
    on_disconnect: Literal["cancel", "continue"] | None = None
    require_worker: bool | None = None
    metadata: dict[str, Any] | None = None


class SystemPromptBody(BaseModel):
    system_prompt: str = Field(repr=False)


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


class TextPart(_Strict):
    type: Literal["text"]
    text: str = Field(repr=False)


class MessageBody(_Strict):
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | Annotated[list[TextPart], Field(fail_fast=True)] = Field(repr=False)
    name: str | None = None

    @property
    def text(self) -> str:
        if isinstance(self.content, str):
            return self.content
        return "".join(part.text for part in self.content)


class RequestBody(_Strict):
    """What POST /requests takes beside the sampling fields. A field that is null is absent."""

    prompt: str | Texts | None = Field(None, repr=False)
    messages: (
        Annotated[list[MessageBody], Field(fail_fast=True, min_length=1, max_length=MAX_MESSAGES)]
        | None
    ) = None
    system_prompt: str | None = Field(None, max_length=MAX_CHARS, repr=False)
    raw: bool = False
    trim: bool = False
    max_new_tokens: int | None = None
    stream: bool = False
    priority: PriorityName = "standard"
    queue_timeout_s: float | None = Field(None, gt=0)
    timeout_s: float | None = Field(None, gt=0)
    on_disconnect: Literal["cancel", "continue"] = "cancel"
    on_worker_loss: Literal["error", "restart"] = "error"
    require_worker: bool = False
    metadata: dict[str, Any] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    depends_on: Predecessors | None = None
    # Known, and refused by name as long as nothing here can honour them.
    not_before_s: Any = None
    webhook: Any = None
    webhook_events: Any = None
    n: Any = None
    response_format: Any = None
    tools: Any = None
    lora: Any = None


Body = TypeVar("Body", bound=BaseModel)


def read_json(raw: bytes, content_type: str | None) -> Any:
    """The parsed body, of at most MAX_DEPTH levels and MAX_PARTS objects, lists and keys.

    Raises Malformed; NaN, Infinity and half characters are named by their field.
    """
    if not raw:
        raise _no_body()
    media_type = (content_type or "").partition(";")[0].strip().lower()
    if media_type != "application/json" and not (
        media_type.startswith("application/") and media_type.endswith("+json")
    ):
        # Browsers send other types to any server without asking it, so they are no way in.
        message = "content-type: must be application/json"
        raise _malformed("content_type", ("header", "content-type"), message, "content-type")
    if not raw.strip():
        raise _no_body()
    _check_structure(raw)
    try:
        return _decoder.decode(raw)
    except (ValueError, UnicodeDecodeError) as error:
        if fault := _fault_in(raw):
            field, rule = fault
            message = f"{_dotted(field)}: {rule}"
            loc = ("body", *map(_cut, field))
            raise _malformed("value_error", loc, message, _dotted(field)) from None
        text = f"body: is not valid JSON: {error}"
        raise _malformed("json_invalid", ("body",), text, "body") from None


def read_predict(body: Any) -> PredictBody:
    return _validated(PredictBody, body)


def read_system_prompt(body: Any) -> SystemPromptBody:
    return _validated(SystemPromptBody, body)


def read_request(body: Any) -> tuple[RequestBody, dict[str, Any]]:
    """The fields of the request and, apart, the sampling fields as the client gave them."""
    if not isinstance(body, dict):
        raise _malformed("dict_type", ("body",), "body: must be an object", "body")
    given = {key: value for key, value in body.items() if value is not None}
    sampling = {key: given.pop(key) for key in SAMPLING_FIELDS & given.keys()}
    return _validated(RequestBody, given), sampling


def check_integers(fields: Mapping[str, Any]) -> None:
    """No engine and no record takes an integer of more than 64 bits."""
    for name, value in fields.items():
        if isinstance(value, int) and not -(2**63) <= value < 2**63:
            raise InvalidRequest(f"{name}: must fit in 64 bits", param=name)


def _validated(model: type[Body], body: Any) -> Body:
    try:
        return model.model_validate(body, from_attributes=True)
    except ValidationError as error:
        problems = error.errors(include_url=False)
        detail = [
            {
                "type": p["type"],
                "loc": ("body", *map(_cut, p["loc"])),
                "msg": p["msg"],
                "input": _short(p["input"]),
                **({"ctx": p["ctx"]} if "ctx" in p else {}),
            }
            for p in problems[:MAX_DETAILS]
        ]
        # Of a union's complaints the one that got furthest into the value says most.
        worst = max(problems, key=lambda p: len(p["loc"]))
        where = [
            part for part in worst["loc"] if part not in ("str", "list[str]", "list[TextPart]")
        ]
        param = _dotted(where) or "body"
        message = (
            "is no field of this request" if worst["type"] == "extra_forbidden" else worst["msg"]
        )
        raise Malformed(f"{param}: {message}", param=param, detail=detail) from None


def _malformed(kind: str, loc: tuple[str | int, ...], message: str, param: str) -> Malformed:
    detail: list[dict[str, Any]] = [{"type": kind, "loc": loc, "msg": message, "input": None}]
    return Malformed(message, param=param, detail=detail)


def _no_body() -> Malformed:
    """FastAPI's own words for it."""
    detail = {"type": "missing", "loc": ("body",), "msg": "Field required", "input": None}
    return Malformed("body: must not be empty", param="body", detail=[detail])


def _short(value: Any) -> Any:
    """What was sent, unless that is long: an error must not send a big body back."""
    try:
        return value if len(msgspec.json.encode(value)) <= 1024 else None
    except (TypeError, ValueError, OverflowError):
        return None


def _check_structure(raw: bytes) -> None:
    """One look at the brackets and colons that stand outside strings, in time linear to the bytes."""
    if raw.count(b"[") + raw.count(b"{") <= MAX_DEPTH and raw.count(b":") <= MAX_PARTS:
        return  # too few to be too many or too deep, wherever they stand
    # Without what is escaped each quote begins or ends a string.
    outside = raw.replace(b"\\\\", b"").replace(b'\\"', b"").split(b'"')[::2]
    structure = b"".join(outside).translate(None, _NOT_STRUCTURE)
    n_parts = sum(map(structure.count, b"[{:"))
    if n_parts > MAX_PARTS:
        message = f"body: must have at most {MAX_PARTS} objects, lists and keys"
        raise _malformed("too_long", ("body",), message, "body")
    steps = ((byte in b"[{") - (byte in b"]}") for byte in structure)
    if max(accumulate(steps), default=0) > MAX_DEPTH:
        message = f"body: must be nested at most {MAX_DEPTH} levels deep"
        raise _malformed("too_deep", ("body",), message, "body")


def _fault_in(raw: bytes) -> tuple[list[str | int], str] | None:
    """Where the values stand that Python's reader takes and JSON does not know, and what they must be."""
    try:
        parsed = json.loads(raw)
    except ValueError:
        return None
    return _fault(parsed) if isinstance(parsed, dict | list) else None


def _fault(parent: dict[str, Any] | list[Any]) -> tuple[list[str | int], str] | None:
    """It calls itself, for what is nested no deeper than a body may be."""
    children: Iterable[tuple[str | int, Any]] = (
        parent.items() if isinstance(parent, dict) else enumerate(parent)
    )
    for key, child in children:
        if type(child) in _SOUND:
            continue  # there may be millions
        if isinstance(child, dict | list):
            if found := _fault(child):
                return [key, *found[0]], found[1]
        elif isinstance(child, float):
            if not math.isfinite(child):
                return [key], "must be a finite number"
        elif not is_unicode(child):
            return [key], "holds half of a surrogate pair"
    return None


def _dotted(path: Iterable[str | int]) -> str:
    """`messages[0].content`."""
    text = ""
    for part in path:
        name = str(_cut(part))
        text += f"[{name}]" if isinstance(part, int) else f".{name}" if text else name
    return text


def _cut(part: str | int) -> str | int:
    """A client names its fields as it likes, and as long."""
    if isinstance(part, int) or len(part) <= MAX_NAME_CHARS:
        return part
    return part[:MAX_NAME_CHARS] + "..."
