"""Cancels on behalf of one front door: now, or as soon as the broker answers again."""

from __future__ import annotations

import asyncio
import logging

from shared.errors import BrokerUnavailable
from shared.queue.connection import Connection
from shared.queue.ending import CHUNK, cancel_list, end_one
from shared.queue.scripts import Scripts
from shared.queue.snapshot import Snapshot, parse_snapshot

log = logging.getLogger(__name__)
AGAIN_S = 1.0
CODE = "cancelled"
MESSAGE = "cancelled by its client"


class Cancelling:
    def __init__(self, connection: Connection, scripts: Scripts, ttl_ms: int) -> None:
        self._line = connection.line
        self._scripts = scripts
        self._ttl_ms = ttl_ms
        self._later: dict[str, tuple[str, str]] = {}  # ids to code and message

    async def cancel(
        self, rid: str, *, code: str = CODE, message: str = MESSAGE
    ) -> Snapshot | None:
        """End it wherever it is; what is final stays as it is. The snapshot after that, None if unknown."""
        snapshot = await self._peek(rid)
        if snapshot is None:
            return None
        line, scripts, ttl_ms = self._line, self._scripts, self._ttl_ms
        if snapshot.group is not None:
            await cancel_list(line, scripts, rid, snapshot.group.n, code, message, ttl_ms)
        elif snapshot.record is not None:
            await end_one(line, scripts, rid, "cancel", ttl_ms, code=code, message=message)
        return await self._peek(rid)

    def later(self, rid: str, *, code: str = CODE, message: str = MESSAGE) -> None:
        """As `cancel`, as soon as the broker answers again: for what must not run on for nobody."""
        self._later[rid] = (code, message)

    def not_later(self, rid: str) -> None:
        """Somebody wants it after all."""
        self._later.pop(rid, None)

    async def run(self) -> None:
        """Until cancelled: ends what was put off."""
        while True:
            try:
                while self._later:
                    part = list(self._later.items())[:CHUNK]
                    await asyncio.gather(*(self._end(rid, *why) for rid, why in part))
            except BrokerUnavailable as error:
                log.debug("waiting for the broker: %s", error)
            except Exception:
                log.exception("cancelling failed; it goes on")
            await asyncio.sleep(AGAIN_S)

    async def _end(self, rid: str, code: str, message: str) -> None:
        await self.cancel(rid, code=code, message=message)
        self._later.pop(rid, None)

    async def _peek(self, rid: str) -> Snapshot | None:
        return parse_snapshot(rid, await self._line.run(self._scripts.peek(rid)))
