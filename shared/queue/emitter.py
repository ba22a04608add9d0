"""The worker's texts on their way to their readers: kept until the broker has taken them, many in one call.

Loses nothing while the broker is away or full, for it is asked again; the answer itself goes by `Consumer.finish`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from shared.errors import BrokerUnavailable
from shared.queue.line import Line
from shared.queue.scripts import Scripts
from shared.queue.shards import Shards

log = logging.getLogger(__name__)
PIECE_MAX = 1 << 13  # code points
CALL_PIECES = 128
CALL_MAX = 1 << 18  # code points of all pieces of a call
PAUSE_S = 0.5


class Emission:
    """One run's text. `offset`: code points of it that the broker has; `piece`: sent after them, it may be there.

    `apis` is the grant's own list, so that its end is told to readers that are learned of here.
    """

    __slots__ = ("_fresh", "apis", "has_new_reader", "id", "is_lost", "offset", "piece", "token")

    def __init__(self, rid: str, token: str, apis: list[str]) -> None:
        self.id = rid
        self.token = token
        self.apis = apis
        self.offset = 0
        self.piece = ""
        self.has_new_reader = False
        self.is_lost = False
        self._fresh = ""

    @property
    def is_pending(self) -> bool:
        return bool(self.piece or self._fresh or self.has_new_reader)

    def add(self, text: str) -> None:
        self._fresh += text

    def next_piece(self) -> str:
        """The same until `taken` is called: a piece that may be there must not come with other bounds."""
        if not self.piece:
            self.piece, self._fresh = self._fresh[:PIECE_MAX], self._fresh[PIECE_MAX:]
        return self.piece

    def taken(self, missed: Sequence[str]) -> None:
        """The broker has the piece; `missed` are readers that it could not be told to, and the next can."""
        self.offset += len(self.piece)
        self.piece = ""
        self.has_new_reader = bool(missed)
        self.apis.extend(api for api in missed if api not in self.apis)


class Emitter:
    """`name` is the worker's in the queue. `add` never waits; who calls `flush` decides how often pieces go."""

    def __init__(self, line: Line, shards: Shards, name: str) -> None:
        self._line = line
        self._shards = shards
        self._name = name
        self._pending: dict[str, Emission] = {}
        self._flushing = asyncio.Lock()
        self._not_before = 0.0

    @property
    def is_pending(self) -> bool:
        return bool(self._pending)

    def add(self, emission: Emission, text: str) -> None:
        if text and not emission.is_lost:
            emission.add(text)
            self._pending[emission.id] = emission

    def drop(self, rid: str) -> None:
        """Its end says it all, or says that there is none."""
        self._pending.pop(rid, None)

    async def flush(self) -> list[str]:
        """Send one piece of each text. Returns the ids that are no longer this worker's: stop them."""
        lost: list[str] = []
        async with self._flushing:
            if asyncio.get_running_loop().time() < self._not_before:
                return lost
            try:
                for scripts, rids in self._shards.split(list(self._pending)):
                    for emissions in filter(None, self._calls(rids)):
                        lost += await self._send(scripts, emissions)
            except BrokerUnavailable as error:
                # Nothing is given up: the pieces are sent again as they are.
                self._not_before = asyncio.get_running_loop().time() + PAUSE_S
                log.debug("texts wait for the broker: %s", error)
        return lost

    def _calls(self, rids: Sequence[str]) -> list[list[Emission]]:
        """One piece of each, by calls that are bounded in pieces and in text."""
        calls: list[list[Emission]] = [[]]
        size = 0
        for rid in rids:
            emission = self._pending.get(rid)
            if emission is None:
                continue  # it ended while those of another shard were sent
            size += len(emission.next_piece())
            if len(calls[-1]) == CALL_PIECES or (calls[-1] and size > CALL_MAX):
                calls.append([])
                size = len(emission.piece)
            calls[-1].append(emission)
        return calls

    async def _send(self, scripts: Scripts, emissions: Sequence[Emission]) -> list[str]:
        apis = list(dict.fromkeys(api for e in emissions for api in e.apis))
        pieces = [(e.id, e.token, e.offset, e.piece) for e in emissions]
        replies = await self._line.run(scripts.emit(self._name, apis, pieces))
        for emission, (verdict, *missed) in zip(emissions, replies, strict=True):
            if verdict == b"LOST":
                emission.is_lost = True
            else:
                emission.taken([api.decode() for api in missed])
            is_over = emission.is_lost or not emission.is_pending
            if is_over and self._pending.get(emission.id) is emission:
                self.drop(emission.id)
        return [emission.id for emission in emissions if emission.is_lost]
