"""POST /predict: the first seed's door. Parses, hands over, waits, renders; the rules are elsewhere."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from api.answers import (
    EXPIRED,
    accepted_object,
    has_expired,
    item_failure,
    text_of,
)
from api.deps import Services, ServicesDep, TenantDep
from api.edge import exchange_of
from api.errors import WaitTimeout, ended, outcome_code, retry_after
from api.holding import LetGo, hold
from api.intake import Accepted, Ask, digest_of
from api.preferences import PLAIN, Prefer, header_seconds, idempotency_key, read_prefer
from api.responses import JsonResponse
from api.schemas import PredictBody, read_json, read_predict
from shared.errors import BrokerUnavailable, Draining, ResultExpired, UnsupportedParameter
from shared.queue.waiters import Answer
from shared.request import Priority
from shared.status import ReqStatus

router = APIRouter()
SAMPLING = ("temperature", "top_p", "top_k", "repetition_penalty", "frequency_penalty")
HEADER_CHARS = 8000  # some clients refuse longer header lines
CLIENT_CLOSED = 499  # nobody reads it; it is what logs of proxies show


@router.post(
    "/predict",
    summary="Answer one prompt or a list of prompts",
    openapi_extra={
        "requestBody": {
            "required": True,
            "content": {"application/json": {"schema": PredictBody.model_json_schema()}},
        }
    },
)
async def predict(request: Request, services: ServicesDep, tenant: TenantDep) -> Response:
    headers = request.headers
    parsed = read_json(await request.body(), headers.get("content-type"))
    body = read_predict(parsed)
    if body.stream:
        raise UnsupportedParameter("stream: streaming is not supported", param="stream")
    if body.prompt == []:
        return JsonResponse({"response": []})
    settings = services.settings
    prefer = (
        read_prefer(headers.getlist("prefer"), settings.sync_wait_s)
        if "prefer" in headers
        else PLAIN
    )
    key = idempotency_key(headers)
    priority = Priority[body.priority] if body.priority else Priority.standard
    exchange = exchange_of(request)
    exchange.priority = priority.name
    ask = Ask(
        path="/predict",
        tenant=tenant,
        digest=digest_of(parsed, tenant, "/predict"),
        is_routed=True,
        prompt=body.prompt,
        sampling={name: value for name in SAMPLING if (value := getattr(body, name)) is not None},
        override_tokens=body.max_new_tokens,
        trim=body.trim,
        priority=priority,
        queue_timeout_s=body.queue_timeout_s
        or header_seconds(headers, "X-Queue-Timeout", settings.max_queue_s),
        timeout_s=body.timeout_s
        or header_seconds(headers, "X-Request-Timeout", settings.max_timeout_s),
        on_disconnect="continue" if key else body.on_disconnect or "cancel",
        require_worker=bool(body.require_worker),
        metadata=body.metadata,
        traceparent=headers.get("traceparent"),
    )
    rid = services.producer.derived_id(tenant, "key", key) if key else None
    accepted = await services.intake.accept(ask, rid=rid, watch=prefer.wait_s != 0)
    exchange.queue_id = accepted.id
    if prefer.wait_s == 0:
        return _later(services, accepted, prefer)
    wait_s = settings.sync_wait_s if prefer.wait_s is None else prefer.wait_s
    held = await hold(request, services.producer, services.drain, accepted.id, wait_s)
    if isinstance(held, LetGo):
        return await _without_answer(services, accepted, prefer, ask, held)
    if accepted.n is None:
        services.metrics.delivered(held.outcome, priority.name)
        response = _single(held)
    else:
        response = await _list(services, accepted, body.partial is not False)
    if prefer.applied:
        response.headers["preference-applied"] = prefer.applied
    return response


def _single(answer: Answer) -> Response:
    outcome = answer.outcome
    if outcome.status is not ReqStatus.FINISHED:
        raise ended(outcome, answer.id)
    text = text_of(answer)
    if text is None:
        raise ResultExpired(EXPIRED)
    report = outcome.report
    queue_ms = max(0, (outcome.started_ms or outcome.ended_ms) - outcome.submitted_ms)
    return JsonResponse(
        {"response": text},
        headers={
            "x-finish-reason": report.finish_reason.value if report.finish_reason else "",
            "x-queue-time": f"{queue_ms / 1000:.3f}",
            "x-inference-time": f"{report.inference_s:.3f}",
            "x-prompt-tokens": str(report.usage.prompt_tokens),
            "x-generated-tokens": str(report.usage.completion_tokens),
        },
    )


async def _list(services: Services, accepted: Accepted, may_be_partial: bool) -> Response:
    """Same length, same order; what failed is "" at its index and named in `errors`."""
    children = [accepted.child(index) for index in range(accepted.n or 0)]
    answers = await services.producer.answers(children)
    failures = [f for i, answer in enumerate(answers) if (f := item_failure(i, answer))]
    if failures and (len(failures) == len(answers) or not may_be_partial):
        first = answers[failures[0]["index"]]
        if first is None or has_expired(first):
            raise ResultExpired(EXPIRED)
        raise ended(first.outcome, first.id)
    body: dict[str, Any] = {"response": [(text_of(a) or "") if a else "" for a in answers]}
    if failures:
        body["errors"] = failures
    reasons = ",".join(_reason(answer) for answer in answers)
    headers = {"x-finish-reason": reasons} if len(reasons) <= HEADER_CHARS else {}
    return JsonResponse(body, headers=headers)


def _reason(answer: Answer | None) -> str:
    if answer is None or outcome_code(answer.outcome):
        return "error"
    reason = answer.outcome.report.finish_reason
    return reason.value if reason else ""


def _later(services: Services, accepted: Accepted, prefer: Prefer) -> Response:
    body = accepted_object(accepted, services.producer.known_stats)
    headers = {
        "location": body["urls"]["self"],
        "preference-applied": prefer.applied or "",
        **retry_after(body["estimated_start_s"] or 1.0),
    }
    return JsonResponse(body, 202, headers=headers)


async def _without_answer(
    services: Services, accepted: Accepted, prefer: Prefer, ask: Ask, why: LetGo
) -> Response:
    producer = services.producer
    if why is LetGo.draining:
        raise Draining(
            "this front door is stopping; the request stays queued under its id", retry_after_s=5
        )
    if why is LetGo.timed_out and prefer.is_given:
        return _later(services, accepted, prefer)
    if why is LetGo.client_gone:
        if ask.on_disconnect == "cancel":
            await producer.cancel(accepted.id, code="client_gone", message="its client left")
        return Response(status_code=CLIENT_CLOSED)
    try:
        message = "the wait for its answer was over"
        await producer.cancel(accepted.id, code="wait_timeout", message=message)
    except BrokerUnavailable:
        pass  # its own time-outs will end it; the caller has waited long enough
    raise WaitTimeout(f"no answer within {services.settings.sync_wait_s:g} s (SYNC_WAIT_S)")
