"""/requests: submit, poll, cancel and drop by id, single requests and lists alike. Parses and renders only."""

from __future__ import annotations

from typing import Any

import msgspec
from fastapi import APIRouter, Request
from starlette.responses import Response

from api import answers
from api.asks import REQUESTS, request_ask
from api.deps import Caller, CallerDep
from api.edge import exchange_of
from api.errors import retry_after
from api.holding import LetGo, hold
from api.intake import Accepted, Ask
from api.lookup import derived_id, fetch, is_of_queue, keyed_id, look, owned, queue_id, timeline
from api.preferences import idempotency_key, query_wait
from api.responses import JsonResponse
from api.schemas import RequestBody, read_json
from shared.errors import (
    BrokerLost,
    Draining,
    IdempotencyMismatch,
    ResultExpired,
    UnknownRequest,
)
from shared.queue.waiters import Answer
from shared.request import Priority
from shared.sampling import SamplingParams

router = APIRouter()
ONE = REQUESTS + "/{request_id}"


def _schema() -> dict[str, Any]:
    """The fields of a request and those of SamplingParams side by side, as they are sent."""
    schema = RequestBody.model_json_schema()
    sampling = msgspec.json.schema(SamplingParams)["$defs"]["SamplingParams"]["properties"]
    schema["properties"] = {**sampling, **schema["properties"]}
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


@router.post(
    REQUESTS, status_code=202, summary="Queue a request or a list", openapi_extra=_schema()
)
async def submit(request: Request, caller: CallerDep) -> Response:
    ask = await _read(request, caller)
    rid = await keyed_id(caller, idempotency_key(request.headers))
    return await _submitted(request, caller, ask, rid)


@router.put(ONE, status_code=202, summary="Queue once under an id", openapi_extra=_schema())
async def submit_once(request_id: str, request: Request, caller: CallerDep) -> Response:
    """A second time joins the run, or returns its result; an id given out by a POST may be named too."""
    ask = await _read(request, caller)
    if not is_of_queue(caller, request_id):
        return await _submitted(request, caller, ask, await derived_id(caller, request_id))
    snapshot = await look(caller, request_id)
    exchange_of(request).queue_id = snapshot.id
    if snapshot.digest != ask.digest:
        raise IdempotencyMismatch("this id was used with another body", param="id")
    return await current(caller, snapshot.id)


@router.get(ONE, summary="State or result; ?wait= holds the poll")
async def poll(request_id: str, request: Request, caller: CallerDep) -> Response:
    """200 when final, 202 while not, 404 never seen, 410 no longer kept."""
    services, query = caller.services, request.query_params
    rid = exchange_of(request).queue_id = await queue_id(caller, request_id)
    wait_s = query_wait(query.get("wait"), services.settings.sync_wait_s)
    if wait_s > 0:
        # Watching leaves a mark in the record, so it comes after the look that says whose it is.
        before = owned(caller, await services.producer.peek(rid), request_id)
        if await services.producer.attach(rid) is not None:
            held = await hold(request, services.producer, services.drain, rid, wait_s)
            if held is LetGo.draining:
                raise Draining("this front door is stopping; poll again", retry_after_s=1)
            if isinstance(held, Answer) and before.record is not None:
                services.metrics.delivered([held], Priority(before.record.lane))
    with_token_ids = "output_token_ids" in query.get("include", "").split(",")
    shown = joined if wait_s > 0 else current
    return await shown(caller, rid, with_token_ids=with_token_ids)


@router.post(ONE + "/cancel", summary="End it, whatever its state")
async def cancel(request_id: str, request: Request, caller: CallerDep) -> Response:
    """Idempotent: the object as it is now, also when it had ended before."""
    snapshot = await look(caller, request_id)
    exchange_of(request).queue_id = snapshot.id
    if snapshot.outcome is None:
        ended = await caller.services.producer.cancel(snapshot.id)
        snapshot = owned(caller, ended, request_id)
    return JsonResponse((await fetch(caller, snapshot)).body)


@router.delete(ONE, status_code=204, summary="End it and drop its result")
async def drop(request_id: str, request: Request, caller: CallerDep) -> Response:
    snapshot = await look(caller, request_id)
    exchange_of(request).queue_id = snapshot.id
    if snapshot.outcome is None:
        await caller.services.producer.cancel(snapshot.id)
    await caller.services.producer.drop(snapshot.id)
    return Response(status_code=204)


@router.get(ONE + "/timeline", summary="Why was it slow")
async def show_timeline(request_id: str, request: Request, caller: CallerDep) -> Response:
    snapshot = await look(caller, request_id)
    exchange_of(request).queue_id = snapshot.id
    return JsonResponse(await timeline(caller, snapshot))


async def _read(request: Request, caller: Caller) -> Ask:
    headers = request.headers
    parsed = read_json(await request.body(), headers.get("content-type"))
    ask = request_ask(parsed, headers, caller.tenant, caller.services.settings)
    exchange_of(request).priority = ask.priority.name
    return ask


async def _submitted(request: Request, caller: Caller, ask: Ask, rid: str | None) -> Response:
    accepted = await caller.services.intake.accept(ask, rid=rid)
    exchange_of(request).queue_id = accepted.id
    if accepted.joined:
        return await joined(caller, accepted.id)
    return accepted_response(caller, accepted)


def accepted_response(caller: Caller, accepted: Accepted) -> Response:
    """202 for a request that is new: where to look, and when."""
    body = answers.accepted_object(accepted, caller.services.producer.known_stats)
    headers = {"location": body["urls"]["self"], **retry_after(body["estimated_start_s"] or 1.0)}
    return JsonResponse(body, 202, headers=headers)


async def joined(caller: Caller, rid: str, *, with_token_ids: bool = False) -> Response:
    """What an earlier submit has made, as it is now. It was there when this call came: who does not find it any more
    has no 404 coming, but a submit to send again.
    """
    try:
        return await current(caller, rid, with_token_ids=with_token_ids)
    except UnknownRequest:
        raise forgotten() from None


def forgotten() -> BrokerLost:
    return BrokerLost("the broker lost this request; send it again", retry_after_s=1)


async def current(caller: Caller, rid: str, *, with_token_ids: bool = False) -> Response:
    """The poll's reply for what the request is now."""
    snapshot = owned(caller, await caller.services.producer.peek(rid), rid)
    found = await fetch(caller, snapshot, with_token_ids=with_token_ids)
    if found.is_gone:
        raise ResultExpired(answers.EXPIRED)
    if snapshot.outcome is not None:
        return JsonResponse(found.body)
    after = retry_after(found.body.get("estimated_start_s") or 1.0)
    return JsonResponse(found.body, 202, headers={"location": f"{REQUESTS}/{rid}", **after})
