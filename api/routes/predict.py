"""POST /predict: the first seed's door. Parses, hands over, waits, renders; the rules are elsewhere."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from api.answers import EXPIRED, has_expired, item_failure, text_of
from api.asks import PREDICT, predict_ask
from api.deps import Caller, CallerDep
from api.drain import CARRY_ON_S
from api.edge import exchange_of
from api.errors import WaitTimeout, ended, outcome_code
from api.holding import LetGo, hold
from api.intake import Accepted
from api.lookup import keyed_id
from api.preferences import Prefer, idempotency_key, read_prefer
from api.responses import JsonResponse
from api.routes.requests import accepted_response, forgotten, joined
from api.schemas import PredictBody, read_json
from shared.errors import BrokerUnavailable, Draining, ResultExpired
from shared.queue.producer import Producer
from shared.queue.waiters import Answer
from shared.status import ReqStatus

log = logging.getLogger(__name__)
router = APIRouter()
HEADER_CHARS = 8000  # some clients refuse longer header lines
CLIENT_CLOSED = 499  # nobody reads it; it is what logs of proxies show


@router.post(
    PREDICT,
    summary="Answer one prompt or a list of prompts",
    openapi_extra={
        "requestBody": {
            "required": True,
            "content": {"application/json": {"schema": PredictBody.model_json_schema()}},
        }
    },
)
async def predict(request: Request, caller: CallerDep) -> Response:
    services, headers = caller.services, request.headers
    settings = services.settings
    parsed = read_json(await request.body(), headers.get("content-type"))
    ask, body = predict_ask(parsed, headers, caller.tenant, settings)
    if body.prompt == []:
        return JsonResponse({"response": []})
    prefer = read_prefer(headers.getlist("prefer"), settings.sync_wait_s)
    key = idempotency_key(headers)
    rid = await keyed_id(caller, key)
    exchange = exchange_of(request)
    exchange.priority = ask.priority.name
    may_go_on = key is not None or ask.on_disconnect == "continue"
    is_waited_for = prefer.wait_s != 0
    accepted = await services.intake.accept(
        ask, rid=rid, watch=is_waited_for, held=is_waited_for and not may_go_on
    )
    exchange.queue_id = accepted.id
    if prefer.wait_s == 0:
        return await _later(caller, accepted, prefer, is_new=not accepted.joined)
    wait_s = settings.sync_wait_s if prefer.wait_s is None else prefer.wait_s
    held = await hold(request, services.producer, services.drain, accepted.id, wait_s)
    if held is LetGo.timed_out and prefer.is_given:
        if not await _carry_on(services.producer, accepted):
            raise BrokerUnavailable("the broker does not answer", retry_after_s=2)
        # It may have ended just now.
        held = await services.producer.answer(accepted.id) or held
    if isinstance(held, LetGo):
        if held is LetGo.client_gone:
            exchange.code = "client_gone"
        return await _without_answer(caller, accepted, prefer, held, may_go_on)
    children = [accepted.child(index) for index in range(accepted.n or 0)]
    answers = [held] if accepted.n is None else await services.producer.answers(children)
    if not accepted.joined and None in answers:
        # The list has only just ended, so no life of its items is over: the broker was emptied meanwhile.
        raise forgotten()
    if not accepted.joined:
        services.metrics.delivered(answers, ask.priority)
    response = _single(held) if accepted.n is None else _list(answers, body.partial is not False)
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
            **_reasoning([answer]),
        },
    )


def _list(answers: Sequence[Answer | None], may_be_partial: bool) -> Response:
    """Same length, same order; what failed is "" at its index and named in `errors`."""
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
    return JsonResponse(body, headers=headers | _reasoning(answers))


def _reasoning(answers: Sequence[Answer | None]) -> dict[str, str]:
    """What reasoning took of each budget, where it took anything: a short answer may have been eaten by it."""
    counts = [a.outcome.report.usage.reasoning_tokens if a else 0 for a in answers]
    told = ",".join(map(str, counts))
    return {"x-reasoning-tokens": told} if any(counts) and len(told) <= HEADER_CHARS else {}


def _reason(answer: Answer | None) -> str:
    if answer is None or outcome_code(answer.outcome):
        return "error"
    reason = answer.outcome.report.finish_reason
    return reason.value if reason else ""


async def _later(caller: Caller, accepted: Accepted, prefer: Prefer, *, is_new: bool) -> Response:
    """202 with where to look; what is not new is shown as it is by now."""
    if is_new:
        response = accepted_response(caller, accepted)
    else:
        response = await joined(caller, accepted.id)
    response.headers["preference-applied"] = prefer.applied or ""
    return response


async def _without_answer(
    caller: Caller, accepted: Accepted, prefer: Prefer, why: LetGo, may_go_on: bool
) -> Response:
    """`may_go_on`: the client means to come back, so its leaving does not cancel."""
    producer = caller.services.producer
    if why is LetGo.draining:
        stays = await _carry_on(producer, accepted)
        message = "the request stays queued under its id" if stays else "send the request again"
        raise Draining(f"this front door is stopping; {message}", retry_after_s=5)
    if why is LetGo.timed_out and prefer.is_given:
        return await _later(caller, accepted, prefer, is_new=False)
    if why is LetGo.client_gone:
        if not may_go_on:
            await _give_up(producer, accepted.id, "client_gone", "its client left")
        return Response(status_code=CLIENT_CLOSED)
    await _give_up(producer, accepted.id, "wait_timeout", "the wait for its answer was over")
    limit_s = caller.services.settings.sync_wait_s
    raise WaitTimeout(f"no answer within {limit_s:g} s (SYNC_WAIT_S)")


async def _carry_on(producer: Producer, accepted: Accepted) -> bool:
    """Before its caller is promised that it stays: it must outlive this front door. False where the broker is away."""
    rids = [accepted.id] if accepted.n is None else map(accepted.child, range(accepted.n))
    try:
        async with asyncio.timeout(CARRY_ON_S):
            await producer.carry_on(list(rids))
    except (BrokerUnavailable, TimeoutError) as error:
        log.warning("%s may end with this front door: %r", accepted.id, error)
        return False
    return True


async def _give_up(producer: Producer, rid: str, code: str, message: str) -> None:
    """Nobody waits for it any more, so it must not run on, be the broker there or not."""
    try:
        await producer.cancel(rid, code=code, message=message)
    except BrokerUnavailable:
        producer.cancel_later(rid, code=code, message=message)
