"""Error codes to HTTP: the one table of statuses, the one body, and its headers. Knows no route.

A waiting caller of a request that ended badly gets the same body as a refused one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar

import msgspec

from api.responses import JsonResponse
from shared.errors import Ended, SluiceError
from shared.request import Outcome
from shared.status import ReqStatus

RETRY_CAP_S = 120.0
DEFAULT_RETRY_S = 2.0


class Rule(msgspec.Struct, frozen=True):
    """How one code is told: HTTP status, OpenAI's kind of error, whether to try again, where it arose."""

    status: int
    type: str
    is_retryable: bool = False
    stage: str = "admission"


RULES: Mapping[str, Rule] = {
    "invalid_request": Rule(422, "invalid_request_error"),
    "unsupported_parameter": Rule(422, "invalid_request_error"),
    "idempotency_mismatch": Rule(422, "invalid_request_error"),
    "chain_across_shards": Rule(422, "invalid_request_error"),
    "invalid_api_key": Rule(401, "authentication_error"),
    "forbidden": Rule(403, "permission_error"),
    "unknown_request": Rule(404, "not_found_error"),
    "result_expired": Rule(410, "not_found_error", stage="delivery"),
    "payload_too_large": Rule(413, "invalid_request_error"),
    "prompt_too_long": Rule(413, "invalid_request_error", stage="worker"),
    "queue_full": Rule(429, "rate_limit_error", is_retryable=True),
    "cancelled": Rule(409, "cancelled_error", stage="delivery"),
    "client_gone": Rule(409, "cancelled_error", stage="delivery"),
    "internal_error": Rule(500, "server_error"),
    "engine_error": Rule(500, "server_error", stage="engine"),
    "bad_record": Rule(500, "server_error", stage="queue"),
    "payload_lost": Rule(500, "server_error", stage="queue"),
    "dependency_failed": Rule(424, "failed_dependency_error", stage="queue"),
    "attempts_exhausted": Rule(502, "server_error", stage="worker"),
    "no_workers": Rule(503, "unavailable_error", is_retryable=True),
    "draining": Rule(503, "unavailable_error", is_retryable=True),
    "broker_unavailable": Rule(503, "unavailable_error", is_retryable=True, stage="queue"),
    "broker_lost": Rule(503, "unavailable_error", is_retryable=True, stage="queue"),
    "submit_incomplete": Rule(503, "unavailable_error", is_retryable=True, stage="queue"),
    "expired": Rule(504, "timeout_error", stage="queue"),
    "deadline_exceeded": Rule(504, "timeout_error", stage="engine"),
    "wait_timeout": Rule(504, "timeout_error", stage="delivery"),
}
UNKNOWN_CODE = Rule(500, "server_error")

MESSAGES: Mapping[str, str] = {
    "cancelled": "the request was cancelled",
    "client_gone": "the client left, so the request was cancelled",
    "wait_timeout": "the wait for the answer was over, so the request was cancelled",
    "expired": "the request's time in the queue was over before it started",
    "deadline_exceeded": "the request's time was over before it finished",
    "attempts_exhausted": "the request was given up after its worker failed repeatedly",
    "submit_incomplete": "the list was never fully submitted",
    "dependency_failed": "a request that it depends on did not finish",
}


class InvalidApiKey(SluiceError):
    code: ClassVar[str] = "invalid_api_key"


class WaitTimeout(SluiceError):
    """The sync wait was over; the request has been cancelled."""

    code: ClassVar[str] = "wait_timeout"
    stage: ClassVar[str] = "delivery"


def rule_of(code: str) -> Rule:
    return RULES.get(code, UNKNOWN_CODE)


def code_of(error: SluiceError) -> str:
    return error.ended_code if isinstance(error, Ended) else error.code


def error_object(
    code: str, message: str, *, param: str | None = None, request_id: str | None = None
) -> dict[str, Any]:
    rule = rule_of(code)
    return {
        "message": message,
        "type": rule.type,
        "param": param,
        "code": code,
        "request_id": request_id,
        "retryable": rule.is_retryable,
        "stage": rule.stage,
    }


def outcome_code(outcome: Outcome) -> str:
    """The code of a request that did not finish; "" for one that did."""
    if outcome.status is ReqStatus.FINISHED:
        return ""
    fallback = "cancelled" if outcome.status is ReqStatus.CANCELLED else "internal_error"
    return outcome.code or fallback


def outcome_error(outcome: Outcome, request_id: str) -> dict[str, Any] | None:
    code = outcome_code(outcome)
    if not code:
        return None
    return error_object(code, outcome.message or MESSAGES.get(code, code), request_id=request_id)


def ended(outcome: Outcome, request_id: str) -> Ended:
    """What a waiting caller is told of a request that did not finish."""
    code = outcome_code(outcome)
    message = outcome.message or MESSAGES.get(code, code)
    retryable = rule_of(code).is_retryable
    return Ended(message, code=code, request_id=request_id, retryable=retryable)


def error_response(
    error: SluiceError, request_id: str, *, retry_after_s: float | None = None, detail: Any = None
) -> JsonResponse:
    """`detail` stands beside `error` on the paths of the first seed, which told bad input that way."""
    code = code_of(error)
    rule = rule_of(code)
    shown = error.request_id if isinstance(error, Ended) else request_id
    body = {"error": error_object(code, error.message, param=error.param, request_id=shown)}
    if detail is not None:
        body = {"detail": detail, **body}
    return JsonResponse(body, rule.status, headers=_headers(rule, retry_after_s))


def _headers(rule: Rule, retry_after_s: float | None) -> dict[str, str]:
    headers = {}
    if rule.status in (429, 503):
        headers = retry_after(DEFAULT_RETRY_S if retry_after_s is None else retry_after_s)
    if rule.status == 401:
        headers["www-authenticate"] = "Bearer"
    if not rule.is_retryable:
        # OpenAI's client sends 408, 409, 429 and 5xx again unless told otherwise.
        headers["x-should-retry"] = "false"
    return headers


def retry_after(seconds: float) -> dict[str, str]:
    """Both spellings, between 0.1 and 120 s."""
    held = max(0.1, min(RETRY_CAP_S, seconds))
    return {"retry-after": str(math.ceil(held)), "retry-after-ms": str(math.ceil(held * 1000))}
