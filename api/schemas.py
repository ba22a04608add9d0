"""The bodies that clients send: how they are read from bytes, checked and described in /openapi.json.

Sampling fields of the full face are not listed here: every field of `SamplingParams` is one.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from typing import Any, Literal, TypeVar

import msgspec
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from shared.errors import InvalidRequest
from shared.sampling import SamplingParams

SAMPLING_FIELDS = frozenset(SamplingParams.__struct_fields__)
PriorityName = Literal["interactive", "standard", "batch"]
_decoder = msgspec.json.Decoder()


class Malformed(InvalidRequest):
    """A body that failed its schema; `detail` is FastAPI's list of what is wrong where."""

    def __init__(self, message: str, *, param: str | None, detail: list[dict[str, Any]]) -> None:
        super().__init__(message, param=param)
        self.detail = detail


class PredictBody(BaseModel):
    """Coerces as the first seed did: "12" and 12.0 are 12, true is 1. Unknown fields are ignored."""

    model_config = ConfigDict(extra="ignore", allow_inf_nan=False)

    prompt: str | list[str]
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
    system_prompt: str


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


class TextPart(_Strict):
    type: Literal["text"]
    text: str


class MessageBody(_Strict):
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[TextPart]
    name: str | None = None

    @property
    def text(self) -> str:
        if isinstance(self.content, str):
            return self.content
        return "".join(part.text for part in self.content)


class RequestBody(_Strict):
    """What POST /requests takes beside the sampling fields. A field that is null is absent."""

    prompt: str | list[str] | None = None
    messages: list[MessageBody] | None = Field(None, min_length=1)
    system_prompt: str | None = None
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
    # Known, and refused by name as long as nothing here can honour them.
    not_before_s: Any = None
    depends_on: Any = None
    webhook: Any = None
    webhook_events: Any = None
    n: Any = None
    response_format: Any = None
    tools: Any = None
    lora: Any = None


Body = TypeVar("Body", bound=BaseModel)


def read_json(raw: bytes, content_type: str | None) -> Any:
    """The parsed body. Raises Malformed; NaN, Infinity and half characters are named by their field."""
    media_type = (content_type or "").partition(";")[0].strip().lower()
    if media_type != "application/json" and not (
        media_type.startswith("application/") and media_type.endswith("+json")
    ):
        # Browsers send other types to any server without asking it, so they are no way in.
        message = "content-type: must be application/json"
        raise _malformed("content_type", ("header", "content-type"), message, "content-type")
    if not raw.strip():
        raise _malformed("missing", ("body",), "body: must not be empty", "body")
    try:
        return _decoder.decode(raw)
    except RecursionError:
        raise _malformed("json_invalid", ("body",), "body: is nested too deeply", "body") from None
    except (ValueError, UnicodeDecodeError) as error:
        field, message = _fault_in(raw)
        if field:
            raise _malformed("value_error", ("body", *field), message, _dotted(field)) from None
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
                "loc": ("body", *p["loc"]),
                "msg": p["msg"],
                "input": _short(p["input"]),
                **({"ctx": p["ctx"]} if "ctx" in p else {}),
            }
            for p in problems
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


def _short(value: Any) -> Any:
    """What was sent, unless that is long: an error must not send a big body back."""
    try:
        return value if len(msgspec.json.encode(value)) <= 1024 else None
    except (TypeError, ValueError, OverflowError, RecursionError):
        return None


def _fault_in(raw: bytes) -> tuple[list[str | int], str]:
    """Where the values stand that Python's reader takes and JSON does not know; [] if nowhere."""
    try:
        parsed = json.loads(raw)
    except (ValueError, RecursionError):
        return [], ""
    stack: list[tuple[list[str | int], Any]] = [([], parsed)]
    while stack:
        path, value = stack.pop()
        if isinstance(value, float) and not math.isfinite(value):
            return path, f"{_dotted(path)}: must be a finite number"
        if isinstance(value, str) and any("\ud800" <= c <= "\udfff" for c in value):
            return path, f"{_dotted(path)}: holds half of a surrogate pair"
        children: Iterable[tuple[str | int, Any]] = ()
        if isinstance(value, dict):
            children = value.items()
        elif isinstance(value, list):
            children = enumerate(value)
        stack.extend(([*path, key], child) for key, child in children)
    return [], ""


def _dotted(path: Iterable[str | int]) -> str:
    """`messages[0].content`."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else str(part)
    return text
