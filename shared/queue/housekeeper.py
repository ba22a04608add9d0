"""What must happen though nobody asks: the clock, lost leases, passed deadlines, delayed requests, dead workers.

Run by every API and every worker; that several run at once does no harm.
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial

from redis.exceptions import ResponseError

from shared.errors import CodecError
from shared.queue.connection import Connection
from shared.queue.ending import Kept, cancel_list, end_missing, end_one
from shared.queue.scripts import Scripts
from shared.queue.shards import Shards
from shared.queue.snapshot import parse_snapshot
from shared.queue.transitions import moved
from shared.queue.upkeep import Step
from shared.settings import QueueSettings
from shared.status import ReqStatus

log = logging.getLogger(__name__)
PERIOD_S = 1.0
PRUNE_EVERY = 30
BATCH = 128
SWEEPS_MAX = 64
MAX_IDLE_GRANTS = 5


class Housekeeper:
    def __init__(self, connection: Connection, settings: QueueSettings) -> None:
        self._line = connection.line
        self._settings = settings
        self._shards = Shards(settings.queue_name, settings.shards)
        self._kept = Kept.of(settings)

    async def run(self) -> None:
        """Until cancelled. A broker that is away is waited for; its faults are logged by the connection."""
        rounds = [Step("housekeeping", partial(self._once, scripts)) for scripts in self._shards]
        prunes = [Step("pruning", partial(self._prune, scripts)) for scripts in self._shards]
        round_number = 0
        while True:
            is_prune_due = round_number % PRUNE_EVERY == 0
            for step in (*rounds, *prunes) if is_prune_due else rounds:
                await step.once()
            round_number += 1
            await asyncio.sleep(PERIOD_S)

    async def once(self) -> None:
        """One round. Raises what the first shard that fails raises."""
        for scripts in self._shards:
            await self._once(scripts)

    async def _prune(self, scripts: Scripts) -> None:
        await self._line.run(scripts.prune(int(self._settings.lease_s * 4000)))

    async def _once(self, scripts: Scripts) -> None:
        line = self._line
        await line.run(scripts.tick(int(self._settings.lease_s * 1000)))
        while True:
            n, more, back = await line.run(
                scripts.reap(BATCH, self._settings.max_crashes, MAX_IDLE_GRANTS)
            )
            if n:
                log.warning("took back %d requests whose worker lost its lease", n)
            for rid in back:
                moved(rid.decode(), ReqStatus.RUNNING, ReqStatus.PENDING, "reap")
            if not more:
                break
        while (await line.run(scripts.promote(BATCH)))[1]:
            pass
        await self._sweep(scripts)

    async def _sweep(self, scripts: Scripts) -> None:
        # Each end may make others due: those that depended on it. What cannot be ended comes again and again.
        for _ in range(SWEEPS_MAX):
            due, parents = await self._line.run(scripts.sweep(BATCH))
            await asyncio.gather(*(self._end_due(scripts, rid.decode()) for rid in due))
            for parent in parents:
                await self._end_list(scripts, parent.decode())
            if not due:
                return

    async def _end_list(self, scripts: Scripts, parent: str) -> None:
        try:
            snapshot = parse_snapshot(parent, await self._line.run(scripts.peek(parent)))
        except (CodecError, ResponseError):
            log.exception("the list %s cannot be read; it is left to its record's life", parent)
            snapshot = None
        if snapshot is None or snapshot.group is None:
            # Nothing is left to be done for it here.
            await self._line.run(("ZREM", scripts.keys.fixed("resv"), parent))
            return
        if snapshot.group.cancelled:
            # Whoever cancelled it did not get to its end.
            code, message = "cancelled", "cancelled by its client"
            n = snapshot.group.n
            await cancel_list(self._line, scripts, parent, n, code, message, self._kept)
        else:
            ttl_ms = self._kept.record_ms
            await end_missing(self._line, scripts, parent, "E", "submit_incomplete", ttl_ms)

    async def _end_due(self, scripts: Scripts, rid: str) -> None:
        if not await end_one(self._line, scripts, rid, "expire", self._kept):
            await end_one(self._line, scripts, rid, "dead", self._kept)
