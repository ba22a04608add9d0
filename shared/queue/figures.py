"""The queue's figures as one front door knows them: every shard asked, added up, and how fast the queue drains."""

from __future__ import annotations

import asyncio
import logging

import msgspec

from shared.queue import stats
from shared.queue.line import Line
from shared.queue.shards import Shards
from shared.queue.stats import QueueStats
from shared.worker_info import WorkerSeen

log = logging.getLogger(__name__)
AVERAGE_S = 15.0


class Figures:
    def __init__(self, line: Line, shards: Shards, lease_s: float) -> None:
        self.known: QueueStats | None = None
        self._line = line
        self._shards = shards
        self._lease_s = lease_s
        self._told: list[int] = []
        self._unserved: dict[
            int, int
        ] = {}  # shards without a worker, by the time when that was first so

    @property
    def workers(self) -> tuple[WorkerSeen, ...]:
        return self.known.workers if self.known is not None else ()

    async def look(self) -> QueueStats:
        """Ask now. Raises BrokerUnavailable."""
        replies = await asyncio.gather(*(self._line.run(s.stats()) for s in self._shards))
        parts = [stats.parse(reply, self._lease_s) for reply in replies]
        self._warn_of_unserved(parts)
        fresh = stats.merge(parts)
        before = self.known
        rate = before.drain_rate_per_s if before else 0.0
        if before is not None and fresh.now_ms - before.now_ms >= 500:
            seconds = (fresh.now_ms - before.now_ms) / 1000
            latest = max(0, fresh.ended - before.ended) / seconds
            # A moving average, and none of the idle time: it tells how fast a queue drains.
            weight = min(1.0, seconds / AVERAGE_S)
            if fresh.live or latest:
                rate = latest if rate == 0 else rate + (latest - rate) * weight
        self.known = msgspec.structs.replace(fresh, drain_rate_per_s=rate)
        return self.known

    def _warn_of_unserved(self, parts: list[QueueStats]) -> None:
        """A worker that is set to fewer shards than this front door would leave requests waiting for ever. Said once it
        has been so for a lease: a worker that starts or was paused comes to one shard after the other.
        """
        served = [any(worker.is_live for worker in part.workers) for part in parts]
        if not any(served):
            served = [True] * len(parts)
        now_ms = parts[0].now_ms
        found = [shard for shard, is_served in enumerate(served) if not is_served]
        since = {shard: self._unserved.get(shard, now_ms) for shard in found}
        limit_ms = self._lease_s * 1000
        overdue = [shard for shard in found if now_ms - since[shard] - limit_ms >= 0]
        if overdue and overdue != self._told:
            log.error("no worker serves shards %s: SHARDS must be the same everywhere", overdue)
        self._unserved, self._told = since, overdue
