"""The moves between a request's states as the broker's scripts carry them out."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable, Iterator

import redis

from shared.status import RECORD_STATES, ReqStatus
from tests.queue.harness import Shard

RID = "recorded.0-a"
QUEUE_TIMEOUT_MS = 500
HOLDER, OTHER = "w1", "w2"
NEVER_GRANTED = "0-0"  # a token


def is_carried_out(broker_url: str, start: ReqStatus, to: ReqStatus) -> bool:
    """A request is brought to `start`, and the operation that leads to `to` is tried on it: whether it is `to`
    afterwards and something of it has changed.
    """
    with _shard(broker_url) as shard:
        token = START[start](shard)
        before = _kept(shard)
        if _status(shard) is not start:
            raise AssertionError(f"it could not be brought to {start.value}")
        MOVE[to](shard, token)
        shard.check()
        return _status(shard) is to and _kept(shard) != before


@contextlib.contextmanager
def _shard(broker_url: str) -> Iterator[Shard]:
    client = redis.Redis.from_url(broker_url)
    try:
        shard = Shard(client, f"v-{uuid.uuid4().hex[:16]}")
        shard.advance(1)
        yield shard
        client.unlink(*client.scan_iter(f"{shard.keys.prefix}*", 1000))
    finally:
        client.close()


def _status(shard: Shard) -> ReqStatus:
    return RECORD_STATES[shard.state(RID) or ""]


def _kept(shard: Shard) -> tuple[bytes | None, bytes | None]:
    """All that the broker knows of it: its record while it lives, its outcome afterwards."""
    live = shard.client.hget(shard.keys.fixed("live"), RID)
    return live, shard.client.get(shard.keys.outcome(RID))


def _pending(shard: Shard) -> str:
    shard.submit(RID, queue_timeout_ms=QUEUE_TIMEOUT_MS)
    return NEVER_GRANTED


def _running(shard: Shard) -> str:
    _pending(shard)
    _, token = shard.grant(HOLDER)
    return token


def _after(operation: Callable[[Shard, str], None]) -> Callable[[Shard], str]:
    """What is over has been running, so that its worker still has the token of its lease."""

    def bring(shard: Shard) -> str:
        token = _running(shard)
        operation(shard, token)
        return token

    return bring


def _give_back(shard: Shard, token: str) -> None:
    shard.nack("release", RID, token, HOLDER)


def _claim(shard: Shard, token: str) -> None:
    shard.claim(OTHER)


def _finish(shard: Shard, token: str) -> None:
    shard.finish(RID, token, HOLDER)


def _cancel(shard: Shard, token: str) -> None:
    shard.end(RID, "cancel")


def _fail(shard: Shard, token: str) -> None:
    """What no worker ever had can only run out of time."""
    if token == NEVER_GRANTED:
        shard.advance(2 * QUEUE_TIMEOUT_MS)
        shard.end(RID, "expire")
    else:
        shard.finish(RID, token, HOLDER, state="E", body=None, code="engine_error")


# How it is brought to a state, with the token of its lease; and the one operation that leads to a state.
START: dict[ReqStatus, Callable[[Shard], str]] = {
    ReqStatus.PENDING: _pending,
    ReqStatus.RUNNING: _running,
    ReqStatus.FINISHED: _after(_finish),
    ReqStatus.CANCELLED: _after(_cancel),
    ReqStatus.ERROR: _after(_fail),
}
MOVE: dict[ReqStatus, Callable[[Shard, str], None]] = {
    ReqStatus.PENDING: _give_back,
    ReqStatus.RUNNING: _claim,
    ReqStatus.FINISHED: _finish,
    ReqStatus.CANCELLED: _cancel,
    ReqStatus.ERROR: _fail,
}
