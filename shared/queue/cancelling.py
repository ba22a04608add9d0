"""Cancels on behalf of one front door: now, or as soon as the broker answers again."""

from __future__ import annotations

import asyncio

from shared.errors import BrokerUnavailable
from shared.queue.connection import Connection
from shared.queue.ending import CHUNK, Kept, cancel_list, end_one
from shared.queue.shards import Shards
from shared.queue.snapshot import Snapshot, parse_snapshot
from shared.queue.upkeep import Step, keep

AGAIN_S = 1.0
CODE = "cancelled"
MESSAGE = "cancelled by its client"


class Cancelling:
    def __init__(self, connection: Connection, shards: Shards, kept: Kept) -> None:
        self._line = connection.line
        self._shards = shards
        self._kept = kept
        self._later: dict[str, tuple[str, str]] = {}  # ids to code and message

    async def cancel(
        self, rid: str, *, code: str = CODE, message: str = MESSAGE
    ) -> Snapshot | None:
        """End it wherever it is; what is final stays as it is. The snapshot after that, None if unknown."""
        snapshot = await self._peek(rid)
        if snapshot is None:
            return None
        line, scripts, kept = self._line, self._shards.of(rid), self._kept
        if snapshot.group is not None:
            await cancel_list(line, scripts, rid, snapshot.group.n, code, message, kept)
        elif snapshot.record is not None:
            await end_one(line, scripts, rid, "cancel", kept, code=code, message=message)
        return await self._peek(rid)

    def later(self, rid: str, *, code: str = CODE, message: str = MESSAGE) -> None:
        """As `cancel`, as soon as the broker answers again: for what must not run on for nobody."""
        self._later[rid] = (code, message)

    def not_later(self, rid: str) -> None:
        """Somebody wants it after all."""
        self._later.pop(rid, None)

    async def run(self) -> None:
        """Until cancelled: ends what was put off."""
        await keep(AGAIN_S, Step("cancelling", self._end_all))

    async def _end_all(self) -> None:
        """Each once; one that fails waits for the next time behind the others."""
        failures: list[Exception] = []
        waiting = list(self._later)
        for start in range(0, len(waiting), CHUNK):
            part = [rid for rid in waiting[start : start + CHUNK] if rid in self._later]
            ends = (self._end(rid, *self._later[rid]) for rid in part)
            done = await asyncio.gather(*ends, return_exceptions=True)
            for rid, error in zip(part, done, strict=True):
                if isinstance(error, BrokerUnavailable):
                    raise error
                if isinstance(error, Exception):
                    failures.append(error)
                    self._later[rid] = self._later.pop(rid, (CODE, MESSAGE))
        if failures:
            raise ExceptionGroup("some could not be cancelled", failures)

    async def _end(self, rid: str, code: str, message: str) -> None:
        await self.cancel(rid, code=code, message=message)
        self._later.pop(rid, None)

    async def _peek(self, rid: str) -> Snapshot | None:
        return parse_snapshot(rid, await self._line.run(self._shards.of(rid).peek(rid)))
