"""/requests: submit, poll, cancel and drop by id, single requests and lists alike. Parses and renders only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from fastapi import APIRouter, Request
from starlette.responses import Response

from api import answers
from api.deps import Services, ServicesDep, TenantDep
from api.edge import exchange_of
from api.errors import retry_after
from api.holding import LetGo, hold
from api.intake import Accepted, Ask, digest_of
from api.preferences import check_client_id, header_seconds, idempotency_key, query_wait
from api.responses import JsonResponse
from api.schemas import RequestBody, read_json, read_request
from shared.errors import (
    Draining,
    IdempotencyMismatch,
    InvalidRequest,
    ResultExpired,
    UnknownRequest,
    UnsupportedParameter,
)
from shared.queue.producer import Snapshot
from shared.queue.waiters import Answer
from shared.request import Message, Priority, queue_and_shard
from shared.sampling import SamplingParams
from shared.status import ReqStatus

router = APIRouter()
PATH = "/requests"
# What counts as not asking for the thing.
_NEUTRAL: dict[str, Sequence[Any]] = {
    "n": (1,),
    "response_format": ({"type": "text"},),
    "tools": ([],),
    "depends_on": ([],),
    "webhook_events": ([],),
    "not_before_s": (0,),
    "webhook": (),
    "lora": (),
}


def _schema() -> dict[str, Any]:
    """The fields of a request and those of SamplingParams side by side, as they are sent."""
    schema = RequestBody.model_json_schema()
    sampling = msgspec.json.schema(SamplingParams)["$defs"]["SamplingParams"]["properties"]
    schema["properties"] = {**sampling, **schema["properties"]}
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


@router.post(PATH, status_code=202, summary="Queue a request or a list", openapi_extra=_schema())
async def submit(request: Request, services: ServicesDep, tenant: TenantDep) -> Response:
    ask = await _read(request, services, tenant)
    key = idempotency_key(request.headers)
    rid = services.producer.derived_id(tenant, "key", key) if key else None
    accepted = await services.intake.accept(ask, rid=rid)
    exchange_of(request).queue_id = accepted.id
    if accepted.joined:
        return await _current(services, accepted.id, tenant)
    return _accepted(services, accepted)


@router.put(
    PATH + "/{request_id}",
    status_code=202,
    summary="Queue once under an id",
    openapi_extra=_schema(),
)
async def submit_once(
    request_id: str, request: Request, services: ServicesDep, tenant: TenantDep
) -> Response:
    """A second time joins the run, or returns its result; an id given out by a POST may be named too."""
    ask = await _read(request, services, tenant)
    if queue_and_shard(request_id):
        snapshot = await _look(services, request_id, tenant)
        exchange_of(request).queue_id = snapshot.id
        if snapshot.digest != ask.digest:
            raise IdempotencyMismatch("this id was used with another body", param="id")
        return await _current(services, snapshot.id, tenant)
    rid = services.producer.derived_id(tenant, "id", check_client_id(request_id))
    accepted = await services.intake.accept(ask, rid=rid)
    exchange_of(request).queue_id = rid
    if accepted.joined:
        return await _current(services, rid, tenant)
    return _accepted(services, accepted)


@router.get(PATH + "/{request_id}", summary="State or result; ?wait= holds the poll")
async def poll(
    request_id: str, request: Request, services: ServicesDep, tenant: TenantDep
) -> Response:
    """200 when final, 202 while not, 404 never seen, 410 no longer kept."""
    rid = _own_id(services, request_id, tenant)
    exchange_of(request).queue_id = rid
    query = request.query_params
    wait_s = query_wait(query.get("wait"), services.settings.sync_wait_s)
    if wait_s > 0:
        _owned(await services.producer.peek(rid), request_id, tenant)
        # Watching leaves a mark in the record, so it comes after the look that says whose it is.
        if await services.producer.attach(rid) is not None:
            held = await hold(request, services.producer, services.drain, rid, wait_s)
            if held is LetGo.draining:
                raise Draining("this front door is stopping; poll again", retry_after_s=1)
    with_token_ids = "output_token_ids" in query.get("include", "").split(",")
    return await _current(services, rid, tenant, with_token_ids=with_token_ids)


@router.post(PATH + "/{request_id}/cancel", summary="End it, whatever its state")
async def cancel(
    request_id: str, request: Request, services: ServicesDep, tenant: TenantDep
) -> Response:
    """Idempotent: the object as it is now, also when it had ended before."""
    snapshot = await _look(services, request_id, tenant)
    exchange_of(request).queue_id = snapshot.id
    if snapshot.outcome is None:
        snapshot = _owned(await services.producer.cancel(snapshot.id), request_id, tenant)
    shown, _ = await _object(services, snapshot)
    return JsonResponse(shown)


@router.delete(PATH + "/{request_id}", status_code=204, summary="End it and drop its result")
async def drop(
    request_id: str, request: Request, services: ServicesDep, tenant: TenantDep
) -> Response:
    snapshot = await _look(services, request_id, tenant)
    exchange_of(request).queue_id = snapshot.id
    if snapshot.outcome is None:
        await services.producer.cancel(snapshot.id)
    await services.producer.drop(snapshot.id)
    return Response(status_code=204)


@router.get(PATH + "/{request_id}/timeline", summary="Why was it slow")
async def timeline(
    request_id: str, request: Request, services: ServicesDep, tenant: TenantDep
) -> Response:
    snapshot = await _look(services, request_id, tenant)
    exchange_of(request).queue_id = snapshot.id
    n = _n_children(snapshot)
    if n == 0:
        return JsonResponse(answers.timeline_object(snapshot))
    children = await services.producer.snapshots([f"{snapshot.id}.{i}" for i in range(n)])
    known = [child for child in children if child is not None]
    items = [answers.timeline_object(child) for child in known]
    return JsonResponse({"id": snapshot.id, "n_items": n, "items": items})


async def _read(request: Request, services: Services, tenant: str) -> Ask:
    headers, settings = request.headers, services.settings
    parsed = read_json(await request.body(), headers.get("content-type"))
    body, sampling = read_request(parsed)
    _refuse_unsupported(body)
    budget = body.max_new_tokens
    if budget is not None and sampling.setdefault("max_tokens", budget) != budget:
        message = "max_new_tokens: differs from max_tokens, which means the same"
        raise InvalidRequest(message, param="max_new_tokens")
    _check_prompt(body)
    exchange_of(request).priority = body.priority
    messages = None
    if body.messages is not None:
        messages = tuple(
            Message("system" if m.role == "developer" else m.role, m.text, m.name)
            for m in body.messages
        )
    return Ask(
        path=PATH,
        tenant=tenant,
        digest=digest_of(parsed, tenant, PATH),
        is_routed=False,
        prompt=body.prompt,
        messages=messages,
        sampling=sampling,
        system_prompt=body.system_prompt,
        raw=body.raw,
        trim=body.trim,
        priority=Priority[body.priority],
        queue_timeout_s=body.queue_timeout_s
        or header_seconds(headers, "X-Queue-Timeout", settings.max_queue_s),
        timeout_s=body.timeout_s
        or header_seconds(headers, "X-Request-Timeout", settings.max_timeout_s),
        on_disconnect=body.on_disconnect,
        on_worker_loss=body.on_worker_loss,
        require_worker=body.require_worker,
        metadata=body.metadata,
        chat_template_kwargs=body.chat_template_kwargs,
        traceparent=headers.get("traceparent"),
    )


def _refuse_unsupported(body: RequestBody) -> None:
    if body.stream:
        raise UnsupportedParameter("stream: streaming is not supported", param="stream")
    for name, neutral in _NEUTRAL.items():
        value = getattr(body, name)
        if value is not None and value not in neutral:
            raise UnsupportedParameter(f"{name}: is not supported", param=name)


def _check_prompt(body: RequestBody) -> None:
    """One of prompt and messages; the template's fields only where a template is used."""
    if (body.prompt is None) == (body.messages is None):
        missing = body.prompt is None
        message = "prompt: give prompt or messages" if missing else "messages: not beside prompt"
        raise InvalidRequest(message, param="prompt" if missing else "messages")
    if body.messages is not None:
        if body.raw:
            raise InvalidRequest("raw: goes with prompt, not with messages", param="raw")
        if body.system_prompt is not None:
            message = "system_prompt: with messages it is the first message"
            raise InvalidRequest(message, param="system_prompt")
    elif body.raw and body.system_prompt is not None:
        message = "system_prompt: has no place in a raw prompt"
        raise InvalidRequest(message, param="system_prompt")


def _accepted(services: Services, accepted: Accepted) -> Response:
    body = answers.accepted_object(accepted, services.producer.known_stats)
    after = retry_after(body["estimated_start_s"] or 1.0)
    return JsonResponse(body, 202, headers={"location": body["urls"]["self"], **after})


def _own_id(services: Services, request_id: str, tenant: str) -> str:
    """An id of the queue as it is; a client's own id as the one that PUT derived from it."""
    where = queue_and_shard(request_id)
    if where is None:
        try:
            return services.producer.derived_id(tenant, "id", check_client_id(request_id))
        except InvalidRequest:
            raise _unknown(request_id) from None
    if where != (services.settings.queue_name, 0):
        raise _unknown(request_id)
    return request_id


def _unknown(request_id: str) -> UnknownRequest:
    return UnknownRequest(f"no request {request_id[:128]!a} is known", param="id")


def _owned(snapshot: Snapshot | None, request_id: str, tenant: str) -> Snapshot:
    """Another tenant's is as unknown as one that never was."""
    if snapshot is None or snapshot.tenant != tenant:
        raise _unknown(request_id)
    return snapshot


async def _look(services: Services, request_id: str, tenant: str) -> Snapshot:
    rid = _own_id(services, request_id, tenant)
    return _owned(await services.producer.peek(rid), request_id, tenant)


async def _current(
    services: Services, rid: str, tenant: str, *, with_token_ids: bool = False
) -> Response:
    """The poll's reply for what the request is now."""
    snapshot = _owned(await services.producer.peek(rid), rid, tenant)
    shown, is_gone = await _object(services, snapshot, with_token_ids=with_token_ids)
    if is_gone:
        raise ResultExpired(answers.EXPIRED)
    if snapshot.outcome is not None:
        return JsonResponse(shown)
    after = retry_after(shown.get("estimated_start_s") or 1.0)
    return JsonResponse(shown, 202, headers={"location": f"{PATH}/{rid}", **after})


async def _object(
    services: Services, snapshot: Snapshot, *, with_token_ids: bool = False
) -> tuple[dict[str, Any], bool]:
    """The object, and whether it finished and its answer is no longer kept."""
    producer = services.producer
    n = _n_children(snapshot)
    if n:
        return await _list_object(services, snapshot, n, with_token_ids)
    if snapshot.record is not None:
        return answers.live_object(snapshot, snapshot.record, producer.known_stats), False
    answer = await producer.answer(snapshot.id)
    if answer is None:
        raise _unknown(snapshot.id)
    return answers.final_object(answer, with_token_ids=with_token_ids), answers.has_expired(answer)


async def _list_object(
    services: Services, snapshot: Snapshot, n: int, with_token_ids: bool
) -> tuple[dict[str, Any], bool]:
    producer = services.producer
    rids = [f"{snapshot.id}.{i}" for i in range(n)]
    found = await producer.answers(rids)
    open_rids = [rid for rid, answer in zip(rids, found, strict=True) if answer is None]
    live = dict(zip(open_rids, await producer.snapshots(open_rids), strict=True))
    # What ended between the two looks is fetched once more.
    late = [rid for rid, child in live.items() if child is not None and child.outcome is not None]
    ended = {answer.id: answer for answer in (*found, *await producer.answers(late)) if answer}
    items = []
    for rid in rids:
        if rid in ended:
            shown = answers.final_object(ended[rid], with_token_ids=with_token_ids)
            items.append(answers.list_item(rid, shown))
        elif (child := live[rid]) is not None and child.record is not None:
            shown = answers.live_object(child, child.record, producer.known_stats)
            items.append(answers.list_item(rid, shown))
        else:
            is_lost = snapshot.outcome is not None
            items.append(answers.lost_item(rid) if is_lost else answers.pending_item(rid))
    parent = snapshot.outcome or snapshot.group
    if parent is None:
        raise _unknown(snapshot.id)
    return answers.list_object(snapshot.id, parent, items, len(ended)), _is_gone(snapshot, n, ended)


def _is_gone(snapshot: Snapshot, n: int, ended: dict[str, Answer]) -> bool:
    """A list whose answers are all outlived or dropped."""
    if snapshot.outcome is None:
        return False
    finished = [a for a in ended.values() if a.outcome.status is ReqStatus.FINISHED]
    return bool(finished or len(ended) < n) and all(map(answers.has_expired, finished))


def _n_children(snapshot: Snapshot) -> int:
    if snapshot.group is not None:
        return snapshot.group.n
    return snapshot.outcome.n_children if snapshot.outcome is not None else 0
