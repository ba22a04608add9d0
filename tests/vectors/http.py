"""Routes of the whole service, driven request by request; and the system prompt's own limits through its route."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from typing import Any

import httpx

from shared.queue.ending import CHUNK
from tests.vectors.comparison import (
    Differences,
    exact,
    is_digest,
    partial,
    spelled_out,
    stated,
    with_types,
)
from tests.vectors.engines import KINDS
from tests.vectors.records import with_one_off
from tests.vectors.scripted import APIS, RecordedEngine
from tests.vectors.service import running
from tests.vectors.surroundings import Surroundings
from tests.vectors.vector import Vector
from worker.engine_choice import OFFLINE

REQUEST = {"method", "path", "json", "headers"}
REPLY = ("status", "response", "engine_calls")
# The body of the seed's framework for whatever the engine raised. Ours is an object that says what it was.
UNHANDLED = "Internal Server Error"


async def http(vector: Vector, around: Surroundings) -> Differences:
    wrong: Differences = []
    async with running(around, vector.input.get("script") or {}) as service:
        for at, step in enumerate(steps(vector)):
            service.engine.calls.clear()
            reply = await _ask(service.client, step["request"])
            wrong += _compare(step, reply, service.engine, f"[{at}]")
    return wrong


def steps(vector: Vector) -> list[dict[str, Any]]:
    """The requests to send and what is wanted of each. A list names its own; what is told once is wanted of all
    that were recorded. Raises ValueError for what would send nothing or ask for nothing.
    """
    wanted = vector.wanted
    if isinstance(wanted, dict):
        wanted = [{"request": step["request"], **wanted} for step in vector.output]
    if not isinstance(wanted, list) or not all(isinstance(step, dict) for step in wanted):
        raise ValueError(f"an output that this runner does not know: {wanted!r}")
    if not wanted:
        raise ValueError("an output that states nothing: no request of it is there to be sent")
    if all("request" not in step for step in wanted):
        recorded = [step["request"] for step in vector.output]
        pairs = zip(recorded, wanted, strict=True)
        wanted = [{"request": asked, **step} for asked, step in pairs]
    return wanted


async def _ask(client: httpx.AsyncClient, request: dict[str, Any]) -> httpx.Response:
    unknown = request.keys() - REQUEST
    if unknown:
        raise ValueError(f"a request with {sorted(unknown)}, which this runner does not know")
    return await client.request(
        request["method"],
        request["path"],
        json=spelled_out(request.get("json")),
        headers=request.get("headers"),
    )


def _compare(
    step: dict[str, Any], reply: httpx.Response, engine: RecordedEngine, where: str
) -> Differences:
    told = {name: value for name, value in step.items() if name != "request"}
    wrong = stated(told, REPLY, where)
    if "status" in step:
        wrong += exact(step["status"], reply.status_code, f"{where}.status")
    if "response" in step:
        wrong += _response(step["response"], reply, f"{where}.response")
    if "engine_calls" in step:
        wanted = _in_order([with_one_off(call) for call in step["engine_calls"]])
        found = _in_order([with_one_off(call) for call in engine.calls])
        wrong += exact(wanted, found, f"{where}.engine_calls")
    return wrong


def _response(wanted: Any, reply: httpx.Response, where: str) -> Differences:
    """Further fields are free: the service says more than the seed did."""
    is_json = reply.headers.get("content-type", "").startswith("application/json")
    found = reply.json() if is_json else reply.text
    if wanted == UNHANDLED:
        return partial({"error": {"code": "engine_error"}}, found, where)
    if isinstance(wanted, dict) and isinstance(found, dict) and "engine_kind" in wanted:
        wanted, found = _in_our_words(wanted), _in_our_words(found)
    return partial(with_types(wanted, found), found, where)


def _in_our_words(body: dict[str, Any]) -> dict[str, Any]:
    kind: Any = body.get("engine_kind")
    return {**body, "engine_kind": KINDS.get(kind, kind)}


def _in_order(calls: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Concurrent calls have none; calls of the offline engine come one after the other.

    A list of more than CHUNK prompts is queued in parts, and an idle worker does not wait for the next one:
    then calls that differ in `n` alone count as one.
    """
    if any(call.get("api") != APIS[OFFLINE] for call in calls):
        return sorted(calls, key=lambda call: json.dumps(call, sort_keys=True))
    if sum(call["n"] for call in calls) <= CHUNK:
        return list(calls)
    totals: Counter[int] = Counter()
    for call in calls:
        totals[call["max_tokens"]] += call["n"]
    return [{"api": APIS[OFFLINE], "n": n, "max_tokens": most} for most, n in totals.items()]


async def set_system_prompt(vector: Vector, around: Surroundings) -> Differences:
    async with running(around, {}) as service:
        body = {"system_prompt": spelled_out(vector.input["new_prompt"])}
        reply = await service.client.post("/system_prompt", json=body)
        found = {"status": reply.status_code}
        if reply.status_code == httpx.codes.OK:
            stored = (await service.client.get("/system_prompt")).json()["system_prompt"]
            length = reply.json()["system_prompt_len"]
            found |= {"stored": stored, "system_prompt_len": length}
    wanted = vector.wanted
    wrong = stated(wanted, ("status", "stored", "system_prompt_len"))
    if not wrong and is_digest(wanted.get("stored")):
        wanted = with_types(wanted, found)
    return wrong or partial(wanted, found)
