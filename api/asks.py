"""Parsed bodies and headers to an `Ask`, for both faces. What is known and cannot be honoured is refused by name."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from starlette.datastructures import Headers

from api.intake import Ask, check_list, digest_of
from api.preferences import header_seconds
from api.schemas import PredictBody, RequestBody, read_predict, read_request
from api.settings import PREDICT_SAMPLING, ApiSettings
from shared.errors import InvalidRequest, UnsupportedParameter
from shared.request import Message, Priority

PREDICT, REQUESTS = "/predict", "/requests"
_TRACEPARENT = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")
# Fields that nothing here honours yet, each with the values that do not ask for it.
_NEUTRAL: dict[str, Sequence[Any]] = {
    "n": (1,),
    "response_format": ({"type": "text"},),
    "tools": ([],),
    "webhook_events": ([],),
    "not_before_s": (0,),
    "webhook": (),
    "lora": (),
}


def predict_ask(
    parsed: Any, headers: Headers, tenant: str, settings: ApiSettings
) -> tuple[Ask, PredictBody]:
    """The first seed's face, and its body for what concerns only the reply."""
    _check_list_in(parsed, settings)
    body = read_predict(parsed)
    _refuse_stream(body.stream)
    given = {name: getattr(body, name) for name in PREDICT_SAMPLING}
    queue_timeout_s, timeout_s = _time_outs(body, headers, settings)
    ask = Ask(
        path=PREDICT,
        tenant=tenant,
        digest=digest_of(parsed, tenant, PREDICT),
        is_routed=settings.profile == "seed",
        prompt=body.prompt,
        sampling={name: value for name, value in given.items() if value is not None},
        override_tokens=body.max_new_tokens,
        trim=body.trim,
        priority=Priority[body.priority] if body.priority else Priority.standard,
        queue_timeout_s=queue_timeout_s,
        timeout_s=timeout_s,
        on_disconnect=body.on_disconnect or "cancel",
        require_worker=bool(body.require_worker),
        metadata=body.metadata,
        traceparent=_traceparent(headers),
    )
    return ask, body


def request_ask(parsed: Any, headers: Headers, tenant: str, settings: ApiSettings) -> Ask:
    """The full face."""
    _check_list_in(parsed, settings)
    body, sampling = read_request(parsed)
    _refuse_unsupported(body)
    budget = body.max_new_tokens
    if budget is not None and sampling.setdefault("max_tokens", budget) != budget:
        message = "max_new_tokens: differs from max_tokens, which means the same"
        raise InvalidRequest(message, param="max_new_tokens")
    _check_prompt(body)
    queue_timeout_s, timeout_s = _time_outs(body, headers, settings)
    return Ask(
        path=REQUESTS,
        tenant=tenant,
        digest=digest_of(parsed, tenant, REQUESTS),
        is_routed=False,
        prompt=body.prompt,
        messages=_messages(body),
        sampling=sampling,
        system_prompt=body.system_prompt,
        raw=body.raw,
        trim=body.trim,
        priority=Priority[body.priority],
        queue_timeout_s=queue_timeout_s,
        timeout_s=timeout_s,
        on_disconnect=body.on_disconnect,
        on_worker_loss=body.on_worker_loss,
        require_worker=body.require_worker,
        depends_on=tuple(body.depends_on or ()),
        metadata=body.metadata,
        chat_template_kwargs=body.chat_template_kwargs,
        traceparent=_traceparent(headers),
    )


def _check_list_in(parsed: Any, settings: ApiSettings) -> None:
    """Before anybody looks at the items one by one: a body has room for millions."""
    if isinstance(parsed, dict) and isinstance(parsed.get("prompt"), list):
        check_list(parsed["prompt"], settings.list_limit)


def _time_outs(
    body: PredictBody | RequestBody, headers: Headers, settings: ApiSettings
) -> tuple[float | None, float | None]:
    """The body stands over the headers."""
    queue_s = header_seconds(headers, "X-Queue-Timeout", settings.max_queue_s)
    whole_s = header_seconds(headers, "X-Request-Timeout", settings.max_timeout_s)
    return (
        queue_s if body.queue_timeout_s is None else body.queue_timeout_s,
        whole_s if body.timeout_s is None else body.timeout_s,
    )


def _traceparent(headers: Headers) -> str | None:
    """As W3C writes it; anything else is as good as none."""
    value = headers.get("traceparent")
    return value if value and _TRACEPARENT.fullmatch(value) else None


def _messages(body: RequestBody) -> tuple[Message, ...] | None:
    if body.messages is None:
        return None
    # OpenAI's newer name for the system role; templates know the older one.
    return tuple(
        Message("system" if m.role == "developer" else m.role, m.text, m.name)
        for m in body.messages
    )


def _refuse_stream(stream: bool | None) -> None:
    if stream:
        raise UnsupportedParameter("stream: streaming is not supported", param="stream")


def _refuse_unsupported(body: RequestBody) -> None:
    _refuse_stream(body.stream)
    for name, neutral in _NEUTRAL.items():
        value = getattr(body, name)
        if value is not None and value not in neutral:
            raise UnsupportedParameter(f"{name}: is not supported", param=name)


def _check_prompt(body: RequestBody) -> None:
    """One of prompt and messages; the template's fields only where a template is used."""
    if body.depends_on and isinstance(body.prompt, list):
        raise InvalidRequest("depends_on: a list cannot depend on others", param="depends_on")
    if body.prompt is None and body.messages is None:
        raise InvalidRequest("prompt: give prompt or messages", param="prompt")
    if body.messages is not None:
        if body.prompt is not None:
            raise InvalidRequest("messages: not beside prompt", param="messages")
        if body.raw:
            raise InvalidRequest("raw: goes with prompt, not with messages", param="raw")
        if body.system_prompt is not None:
            message = "system_prompt: with messages it is the first message"
            raise InvalidRequest(message, param="system_prompt")
    elif body.raw and body.system_prompt is not None:
        message = "system_prompt: has no place in a raw prompt"
        raise InvalidRequest(message, param="system_prompt")
