"""What is known of a request as the objects that clients read. Every text leaves through `text_of`. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from api.errors import error_object, outcome_code, outcome_error
from api.intake import Accepted
from shared.postprocess import postprocess
from shared.queue.snapshot import Group, Snapshot
from shared.queue.stats import QueueStats
from shared.queue.waiters import Answer
from shared.request import Event, Outcome, Record, Usage, child_index, decode_delivery
from shared.status import ReqStatus

EXPIRED = "the answer is no longer kept"


def text_of(answer: Answer) -> str | None:
    """None where there is no text: not finished, or no longer kept."""
    if answer.body is None:
        return None
    return postprocess(answer.body.text, answer.outcome.delivery.trim)


def has_expired(answer: Answer) -> bool:
    """It finished, and its text has been dropped or outlived."""
    return answer.outcome.status is ReqStatus.FINISHED and answer.body is None


def urls(rid: str) -> dict[str, str]:
    base = f"/requests/{rid}"
    return {"self": base, "cancel": f"{base}/cancel"}


def estimated_start_s(position: int | None, stats: QueueStats | None) -> float | None:
    """By the measured drain rate; None while none was measured."""
    if position is None or stats is None:
        return None
    if position == 0 and stats.running == 0:
        return 0.0
    rate = stats.drain_rate_per_s
    return round(position / rate, 3) if rate > 0 else None


def accepted_object(accepted: Accepted, stats: QueueStats | None) -> dict[str, Any]:
    """The body of 202 after a submit."""
    created_s = accepted.submitted_ms / 1000
    return {
        "id": accepted.id,
        "status": ReqStatus.PENDING.value,
        "queue_position": accepted.position,
        "estimated_start_s": estimated_start_s(accepted.position, stats),
        "created_at": created_s,
        "expires_at": created_s + accepted.expires_s,
        "urls": urls(accepted.id),
    }


def live_object(snapshot: Snapshot, record: Record, stats: QueueStats | None) -> dict[str, Any]:
    """A request that has not ended."""
    started = record.started_ms or None
    queue_ms = (started or snapshot.now_ms) - record.submitted_ms
    left_ms = min(record.deadline_ms, record.queue_until_ms) - snapshot.now_ms
    return {
        "id": snapshot.id,
        "status": record.status.value,
        "created_at": _at(record.events, "submitted"),
        "started_at": _at(record.events, "started", "claimed") if started else None,
        "finished_at": None,
        "queue_s": max(0, queue_ms) / 1000,
        "compute_s": max(0, snapshot.now_ms - started) / 1000 if started else 0.0,
        "attempts": _tries(record.crashes, record.attempts, bool(started)),
        "worker": record.worker or None,
        "text": None,
        "finish_reason": None,
        "stop_reason": None,
        "usage": None,
        "reasoning_content": None,
        "metadata": decode_delivery(record.delivery_json).metadata,
        "error": None,
        # Those that have not ended: what it waits for.
        "depends_on": record.depends_on,
        "queue_position": snapshot.position,
        "estimated_start_s": estimated_start_s(snapshot.position, stats),
        "expires_at": (snapshot.wall_ms + left_ms) / 1000,
        "urls": urls(snapshot.id),
    }


def final_object(answer: Answer, *, with_token_ids: bool = False) -> dict[str, Any]:
    """A request that has ended, however it did."""
    outcome, body, report = answer.outcome, answer.body, answer.outcome.report
    started = outcome.started_ms or None
    until = started or outcome.ended_ms
    measured_s = report.inference_s or (
        max(0, outcome.ended_ms - started) / 1000 if started else 0.0
    )
    shown: dict[str, Any] = {
        "id": answer.id,
        "status": outcome.status.value,
        "created_at": _at(outcome.events, "submitted"),
        "started_at": _at(outcome.events, "started", "claimed") if started else None,
        "finished_at": _at(outcome.events, "ended"),
        "queue_s": max(0, until - outcome.submitted_ms) / 1000,
        "compute_s": measured_s,
        "attempts": _tries(outcome.crashes, outcome.attempts, bool(started)),
        "worker": outcome.worker or None,
        "text": text_of(answer),
        "finish_reason": report.finish_reason and report.finish_reason.value,
        "stop_reason": report.stop_reason,
        # A run that was ended from outside tells what it used a moment later.
        "usage": usage_object(report.usage) if started and outcome.report_json else None,
        "reasoning_content": body.reasoning if body else None,
        "metadata": outcome.delivery.metadata,
        "error": outcome_error(outcome, answer.id),
    }
    if body is not None and body.logprobs is not None:
        shown["logprobs"] = body.logprobs
    if with_token_ids:
        shown["output_token_ids"] = list(body.token_ids) if body else None
    return shown


def list_object(
    rid: str, parent: Group | Outcome, items: Sequence[dict[str, Any]], n_ended: int
) -> dict[str, Any]:
    """A list: its own state, and every item in order."""
    metadata = decode_delivery(parent.delivery_json).metadata
    if isinstance(parent, Outcome):
        status, error = parent.status, outcome_error(parent, rid)
        created_at, finished_at = _at(parent.events, "submitted"), _at(parent.events, "ended")
    else:
        has_begun = n_ended > 0 or any(item["status"] != ReqStatus.PENDING.value for item in items)
        status = ReqStatus.RUNNING if has_begun else ReqStatus.PENDING
        created_at, finished_at, error = parent.created_ms / 1000, None, None
    return {
        "id": rid,
        "status": status.value,
        "created_at": created_at,
        "finished_at": finished_at,
        "n_items": len(items),
        "n_ended": n_ended,
        "metadata": metadata,
        "error": error,
        "items": items,
        "urls": urls(rid),
    }


def pending_item(rid: str) -> dict[str, Any]:
    """A child that is reserved and not submitted yet."""
    status = ReqStatus.PENDING.value
    return {"index": child_index(rid), "id": rid, "status": status, "text": None, "error": None}


def lost_item(rid: str) -> dict[str, Any]:
    """A child whose record's life is over while its list's is not."""
    error = error_object("result_expired", EXPIRED, request_id=rid)
    return {**pending_item(rid), "status": ReqStatus.FINISHED.value, "error": error}


def list_item(rid: str, shown: dict[str, Any]) -> dict[str, Any]:
    """One child inside its list, which tells the metadata and the URLs once for all."""
    item = {key: value for key, value in shown.items() if key not in ("metadata", "urls")}
    if item["status"] == ReqStatus.FINISHED.value and item["text"] is None:
        item["error"] = error_object("result_expired", EXPIRED, request_id=rid)
    return {"index": child_index(rid), **item}


def timeline_object(snapshot: Snapshot) -> dict[str, Any]:
    """Why it was slow: who did what when, and the seconds of each stage."""
    known = snapshot.record or snapshot.outcome
    if known is None:
        raise ValueError("a live list has no timeline of its own")
    report = snapshot.outcome.report if snapshot.outcome else None
    submitted_ms, started_ms = known.submitted_ms, known.started_ms
    until_ms = snapshot.outcome.ended_ms if snapshot.outcome else snapshot.now_ms
    stages = {
        "queue_s": ((started_ms or until_ms) - submitted_ms) / 1000,
        "running_s": (until_ms - started_ms) / 1000 if started_ms else 0.0,
        "inference_s": report.inference_s if report else None,
        "first_token_s": report.first_token_s if report else None,
        "total_s": (until_ms - submitted_ms) / 1000,
    }
    return {
        "id": snapshot.id,
        "status": known.status.value,
        "worker": known.worker or None,
        "queue_position": snapshot.position,
        "attempts": _tries(known.crashes, known.attempts, bool(started_ms)),
        "crashes": known.crashes,
        "batch_id": report.batch_id if report else None,
        "batch_size": report.batch_size if report else None,
        "bucket_key": report.bucket_key if report else None,
        "engine": report.engine if report else None,
        "route": decode_delivery(known.delivery_json).route,
        "stages": stages,
        "events": [
            {"at": e.at_ms / 1000, "kind": e.kind, "detail": e.detail} for e in known.events
        ],
        "error": outcome_error(snapshot.outcome, snapshot.id) if snapshot.outcome else None,
    }


def usage_object(usage: Usage) -> dict[str, int]:
    """`reasoning_tokens` are told where there are any: most models have none."""
    shown = {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.total_tokens,
        "cached_tokens": usage.cached_tokens,
    }
    if usage.reasoning_tokens:
        shown["reasoning_tokens"] = usage.reasoning_tokens
    return shown


def item_failure(index: int, answer: Answer | None) -> dict[str, Any] | None:
    """What /predict tells of an item that has no text."""
    if answer is None or has_expired(answer):
        return {"index": index, "code": "result_expired", "message": EXPIRED}
    error = outcome_error(answer.outcome, answer.id)
    if error is None:
        return None
    return {"index": index, "code": outcome_code(answer.outcome), "message": error["message"]}


def _at(events: Sequence[Event], *kinds: str) -> float | None:
    """When the last of these happened, in Unix seconds of the broker's clock; the first kind that did counts.

    Events tell that clock. Everything else in a record goes by the queue's, which stands still while the service is
    down, and is good for differences alone.
    """
    for kind in kinds:
        at_ms = next((event.at_ms for event in reversed(events) if event.kind == kind), None)
        if at_ms is not None:
            return at_ms / 1000
    return None


def _tries(crashes: int, attempts: int, has_started: bool) -> int:
    """How many times it was run: what failed before, and the run that counts."""
    return crashes + attempts + int(has_started)
