"""What a submit sends beside the request itself, and what its reply says. No I/O."""

from __future__ import annotations

from typing import Any

import msgspec

from shared.errors import IdempotencyMismatch, QueueFull, RefusedPredecessor
from shared.queue.snapshot import Submitted
from shared.request import Req


def meta(req: Req, *, api_id: str, held: bool, wants_position: bool) -> list[Any]:
    """`api_id` "": nobody is told of its end, it is looked up. The order is that of lua/submit.lua."""
    return [
        int(req.priority),
        req.tenant,
        req.cost_tokens,
        int(req.timeout_s * 1000),
        int(req.queue_timeout_s * 1000),
        api_id,
        delivery_json(req),
        req.digest,
        list(req.depends_on),
        req.webhook or "",
        req.traceparent or "",
        0,
        1,
        int(held),
        int(wants_position),
    ]


def delivery_json(req: Req) -> str:
    return msgspec.json.encode(req.delivery).decode()


def submitted(rid: str, reply: list[Any]) -> Submitted:
    """Raises IdempotencyMismatch, QueueFull, RefusedPredecessor for a submit that was refused."""
    verdict = reply[0]
    if verdict == b"MISMATCH":
        raise IdempotencyMismatch("this id was used with another body", param="id")
    if verdict == b"FULL":
        which = reply[1].decode()
        raise QueueFull(f"the queue is full ({which.replace('_', ' ')})")
    if verdict in (b"UNKNOWN", b"CROWDED"):
        raise RefusedPredecessor(reply[1].decode(), is_known=verdict == b"CROWDED")
    if verdict == b"DONE":
        return Submitted(rid, 0, 0, joined=True)
    position = int(reply[1])
    return Submitted(
        rid, position if position >= 0 else None, int(reply[2]), joined=verdict == b"DUP"
    )
