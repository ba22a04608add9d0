"""/dlq: requests that were given up, for whoever may administer the service: look, run again, take away."""

from __future__ import annotations

import base64
from typing import Any

import msgspec
from fastapi import APIRouter, Request
from starlette.responses import Response

from api import answers
from api.deps import AdminDep, ServicesDep
from api.errors import outcome_code
from api.responses import JsonResponse
from shared import codec
from shared.errors import CodecError, InvalidRequest, UnknownRequest
from shared.queue.dead_letters import Letter
from shared.queue.snapshot import Snapshot
from shared.status import ReqStatus

router = APIRouter()
ONE = "/dlq/{letter_id}"
PAGE, MOST = 50, 200


@router.get("/dlq", summary="Dead letters, the newest first; ?limit= and ?cursor=")
async def page(request: Request, services: ServicesDep, _: AdminDep) -> Response:
    """`next` is the cursor of the older ones, null where there are none."""
    query = request.query_params
    limit = query.get("limit", str(PAGE))
    if not (limit.isascii() and limit.isdigit() and len(limit) <= 6 and 1 <= int(limit) <= MOST):
        raise InvalidRequest(f"limit: must be 1..{MOST}", param="limit")
    letters, has_more = await services.producer.letters.page(int(limit), query.get("cursor"))
    following = letters[-1].id if letters and has_more else None
    return JsonResponse({"letters": [_summary(letter) for letter in letters], "next": following})


@router.get(ONE, summary="One dead letter with its request and how it ended")
async def show(letter_id: str, services: ServicesDep, _: AdminDep) -> Response:
    """A payload that cannot be read is shown as base64."""
    found = await services.producer.letters.look(letter_id)
    if found is None:
        raise _unknown(letter_id)
    letter, payload = found
    shown = {**_summary(letter), "request": None, "timeline": None}
    try:
        shown["request"] = msgspec.to_builtins(codec.decode_req(payload))
    except CodecError as error:
        shown["unreadable"] = error.message
        shown["payload_base64"] = base64.b64encode(payload).decode()
    if letter.outcome is not None:
        snapshot = Snapshot(letter.request_id, letter.outcome.ended_ms, outcome=letter.outcome)
        shown["timeline"] = answers.timeline_object(snapshot)
    return JsonResponse(shown)


@router.post(ONE + "/requeue", status_code=202, summary="Run it again as a new request")
async def requeue(letter_id: str, services: ServicesDep, _: AdminDep) -> Response:
    """Its tenant and priority stay, its times begin anew. A second time finds the request that the first one made."""
    try:
        made = await services.producer.letters.requeue(letter_id, services.intake.caps)
    except CodecError as error:
        message = f"id: the request cannot be read, so it cannot be run: {error.message}"
        raise InvalidRequest(message, param="id") from error
    if made is None:
        raise _unknown(letter_id)
    status = ReqStatus.PENDING.value
    body = {"id": made.id, "status": status, "joined": made.joined, "urls": answers.urls(made.id)}
    return JsonResponse(body, 202)


@router.delete(ONE, status_code=204, summary="Take it away")
async def drop(letter_id: str, services: ServicesDep, _: AdminDep) -> Response:
    if not await services.producer.letters.drop(letter_id):
        raise _unknown(letter_id)
    return Response(status_code=204)


def _summary(letter: Letter) -> dict[str, Any]:
    """What an outcome that cannot be read would tell is null."""
    outcome = letter.outcome
    return {
        "id": letter.id,
        "request_id": letter.request_id,
        "at": letter.at_ms / 1000,
        "payload_bytes": letter.payload_bytes,
        "tenant": outcome.tenant if outcome else None,
        "code": outcome_code(outcome) if outcome else None,
        "message": outcome.message if outcome else None,
        "crashes": outcome.crashes if outcome else None,
        "attempts": outcome.attempts if outcome else None,
    }


def _unknown(letter_id: str) -> UnknownRequest:
    return UnknownRequest(f"no dead letter {letter_id[:64]!a} is known", param="id")
