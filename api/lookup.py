"""Finds what a caller may see of an id, and fetches it whole: single requests, and lists with their items."""

from __future__ import annotations

from typing import Any, NamedTuple

from api import answers
from api.deps import Caller
from api.preferences import check_client_id
from shared.errors import InvalidRequest, UnknownRequest
from shared.queue.snapshot import Snapshot
from shared.queue.waiters import Answer
from shared.status import ReqStatus


class Found(NamedTuple):
    """`is_gone`: it finished, and its answer is no longer kept."""

    body: dict[str, Any]
    is_gone: bool


async def queue_id(caller: Caller, request_id: str) -> str:
    """An id of this queue as it is; any other as the one that PUT derived from it."""
    if is_of_queue(caller, request_id):
        return request_id
    try:
        return await derived_id(caller, request_id)
    except InvalidRequest:
        raise unknown(request_id) from None


def is_of_queue(caller: Caller, request_id: str) -> bool:
    """Whether it can be an id that was given out here; `v1.2-rc1` is as well formed, and a client's own."""
    return caller.services.producer.holds(request_id)


async def derived_id(caller: Caller, own_id: str) -> str:
    """The id in the queue for one that a client chose. Raises InvalidRequest."""
    producer = caller.services.producer
    return await producer.located(producer.derived_id(caller.tenant, "id", check_client_id(own_id)))


async def keyed_id(caller: Caller, key: str | None) -> str | None:
    """The id in the queue for an `Idempotency-Key`."""
    if key is None:
        return None
    producer = caller.services.producer
    return await producer.located(producer.derived_id(caller.tenant, "key", key))


def unknown(request_id: str) -> UnknownRequest:
    return UnknownRequest(f"no request {request_id[:128]!a} is known", param="id")


def owned(caller: Caller, snapshot: Snapshot | None, request_id: str) -> Snapshot:
    """Another tenant's is as unknown as one that never was."""
    if snapshot is None or snapshot.tenant != caller.tenant:
        raise unknown(request_id)
    return snapshot


async def look(caller: Caller, request_id: str) -> Snapshot:
    rid = await queue_id(caller, request_id)
    return owned(caller, await caller.services.producer.peek(rid), request_id)


async def fetch(caller: Caller, snapshot: Snapshot, *, with_token_ids: bool = False) -> Found:
    """The object that a poll shows."""
    producer = caller.services.producer
    if n_children(snapshot):
        return await _fetch_list(caller, snapshot, with_token_ids)
    if snapshot.record is not None:
        shown = answers.live_object(snapshot, snapshot.record, producer.known_stats)
        return Found(shown, is_gone=False)
    answer = await producer.answer(snapshot.id)
    if answer is None:
        raise unknown(snapshot.id)
    shown = answers.final_object(answer, with_token_ids=with_token_ids)
    return Found(shown, answers.has_expired(answer))


async def timeline(caller: Caller, snapshot: Snapshot) -> dict[str, Any]:
    n = n_children(snapshot)
    if n == 0:
        return answers.timeline_object(snapshot)
    rids = [f"{snapshot.id}.{i}" for i in range(n)]
    children = await caller.services.producer.snapshots(rids)
    items = [answers.timeline_object(child) for child in children if child is not None]
    return {"id": snapshot.id, "n_items": n, "items": items}


def n_children(snapshot: Snapshot) -> int:
    """0 for a request that is no list."""
    if snapshot.group is not None:
        return snapshot.group.n
    return snapshot.outcome.n_children if snapshot.outcome is not None else 0


async def _fetch_list(caller: Caller, snapshot: Snapshot, with_token_ids: bool) -> Found:
    producer = caller.services.producer
    rids = [f"{snapshot.id}.{i}" for i in range(n_children(snapshot))]
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
        raise unknown(snapshot.id)
    shown = answers.list_object(snapshot.id, parent, items, len(ended))
    return Found(shown, _all_gone(snapshot, len(rids), ended))


def _all_gone(snapshot: Snapshot, n: int, ended: dict[str, Answer]) -> bool:
    """A list whose answers are all outlived or dropped."""
    if snapshot.outcome is None:
        return False
    finished = [a for a in ended.values() if a.outcome.status is ReqStatus.FINISHED]
    return bool(finished or len(ended) < n) and all(map(answers.has_expired, finished))
