"""What must happen though nobody asks: the clock, lost leases, passed deadlines, delayed requests, dead workers.

Run by every API and every worker; that several run at once does no harm.
"""

from __future__ import annotations

import asyncio
import logging

from shared.errors import BrokerUnavailable
from shared.queue.connection import Connection
from shared.queue.ending import cancel_list, end_missing, end_one
from shared.queue.keys import Keys
from shared.queue.scripts import Scripts
from shared.queue.snapshot import parse_snapshot
from shared.queue.transitions import moved
from shared.settings import QueueSettings
from shared.status import ReqStatus

log = logging.getLogger(__name__)
PERIOD_S = 1.0
PRUNE_EVERY = 30
BATCH = 128
MAX_IDLE_GRANTS = 5


class Housekeeper:
    def __init__(self, connection: Connection, settings: QueueSettings) -> None:
        self._line = connection.line
        self._settings = settings
        self._scripts = Scripts(Keys(settings.queue_name))

    async def run(self) -> None:
        """Until cancelled. A broker that is away is waited for; its faults are logged by the connection."""
        round_number = 0
        while True:
            try:
                await self.once()
                if round_number % PRUNE_EVERY == 0:
                    silent_ms = int(self._settings.lease_s * 4000)
                    await self._line.run(self._scripts.prune(silent_ms))
                round_number += 1
            except BrokerUnavailable as error:
                log.debug("housekeeping waits for the broker: %s", error)
            except Exception:
                log.exception("housekeeping failed; it goes on")
            await asyncio.sleep(PERIOD_S)

    async def once(self) -> None:
        line, scripts = self._line, self._scripts
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
        await self._sweep()

    async def _sweep(self) -> None:
        ttl_ms = int(self._settings.result_record_ttl_s * 1000)
        while True:
            due, parents = await self._line.run(self._scripts.sweep(BATCH))
            await asyncio.gather(*(self._end_due(rid.decode(), ttl_ms) for rid in due))
            for parent in parents:
                await self._end_list(parent.decode(), ttl_ms)
            if len(due) < BATCH:
                return

    async def _end_list(self, parent: str, ttl_ms: int) -> None:
        snapshot = parse_snapshot(parent, await self._line.run(self._scripts.peek(parent)))
        if snapshot is None or snapshot.group is None:
            return
        if snapshot.group.cancelled:
            # Whoever cancelled it did not get to its end.
            code, message = "cancelled", "cancelled by its client"
            n = snapshot.group.n
            await cancel_list(self._line, self._scripts, parent, n, code, message, ttl_ms)
        else:
            await end_missing(self._line, self._scripts, parent, "E", "submit_incomplete", ttl_ms)

    async def _end_due(self, rid: str, ttl_ms: int) -> None:
        if not await end_one(self._line, self._scripts, rid, "expire", ttl_ms):
            await end_one(self._line, self._scripts, rid, "dead", ttl_ms)
