"""The texts that readers of one API process follow, over the connections that serve its waiters; none is opened.

A chunk that a reader cannot take at once is kept for it up to a bound; what is missing is read again from the request's
part, and at the end from its answer. Knows no HTTP.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any

import msgspec

from shared.errors import BrokerUnavailable
from shared.queue.assembler import Assembler, Place, Reset, Text, merged
from shared.queue.line import Line
from shared.queue.shards import Shards
from shared.queue.waiters import Answer, Waiter, Waiters
from shared.request import Chunk

log = logging.getLogger(__name__)
PIECES = 256  # of a part that are read at once
KEPT = 1 << 16  # code points that are kept for a slow reader, where each chunk counts for some more
CHUNK_COST = 64
AGAIN_S = 1.0


class End(msgspec.Struct, frozen=True):
    """There is no more text. Where it finished, what was read since the last reset is its whole text."""

    answer: Answer


Event = Text | Reset | End


class _Reader:
    """One reader's chunks on their way to it. `is_behind`: it must look into the part, whatever is kept here."""

    __slots__ = ("assembler", "chunks", "is_behind", "size", "stuck_at", "woken")

    def __init__(self, after: Place | None) -> None:
        self.assembler = Assembler(after)
        self.chunks: deque[Chunk] = deque()
        self.size = 0
        self.is_behind = True
        self.stuck_at = float("-inf")  # when the part was of no help against a gap
        self.woken = asyncio.Event()

    def put(self, chunk: Chunk) -> None:
        if not self.is_behind:
            self.chunks.append(chunk)
            self.size += len(chunk.text) + CHUNK_COST
            if self.size > KEPT:
                self.fall_behind()
        self.woken.set()

    def fall_behind(self) -> None:
        """What is kept goes: the part has all of it."""
        self.is_behind = True
        self._clear()
        self.woken.set()

    def take(self) -> list[Text | Reset]:
        """What is new in the chunks that are kept."""
        events = [event for chunk in self.chunks for event in self.assembler.add(chunk)]
        self._clear()
        return merged(events)

    def needs_part(self, now: float) -> bool:
        return self.is_behind or (self.assembler.has_gap and now >= self.stuck_at + AGAIN_S)

    def _clear(self) -> None:
        self.chunks.clear()
        self.size = 0


class Streams:
    """`deliver` fetches an answer from the store to its waiter, if there is one."""

    def __init__(
        self,
        line: Line,
        shards: Shards,
        api_id: str,
        waiters: Waiters,
        deliver: Callable[[str], Awaitable[None]],
    ) -> None:
        self._line = line
        self._shards = shards
        self._api_id = api_id
        self._waiters = waiters
        self._deliver = deliver
        self._readers: dict[str, set[_Reader]] = {}

    def on_chunk(self, rid: str, fields: Mapping[bytes, bytes]) -> None:
        """An entry of this process's stream: `c` is `<attempt>/<offset>`, `t` the token, `d` the text."""
        readers, waiter = self._readers.get(rid), self._waiters.get(rid)
        if readers and waiter:
            attempt, _, offset = fields[b"c"].partition(b"/")
            text, token = fields[b"d"].decode(), fields[b"t"].decode()
            chunk = Chunk(int(attempt), int(offset), text, token)
            waiter.checked_at = asyncio.get_running_loop().time()
            for reader in readers:
                reader.put(chunk)

    def look_again(self, rid: str) -> None:
        """Chunks may have been lost on the way here."""
        for reader in self._readers.get(rid, ()):
            reader.fall_behind()

    async def read(self, rid: str, after: Place | None) -> AsyncGenerator[Event, None]:
        """The events of a watched id from `after` on. Raises what `Producer.stream` does."""
        waiter = self._waiters.get(rid)
        if waiter is None:
            raise KeyError(rid)
        reader = _Reader(after)

        def wake(_: asyncio.Future[Answer]) -> None:
            reader.woken.set()

        waiter.future.add_done_callback(wake)
        self._readers.setdefault(rid, set()).add(reader)
        try:
            # Where the broker is away the caller is told at once; later on it is waited for.
            for event in await self._look(rid, reader, waiter):
                yield event
            while not waiter.future.done():
                reader.woken.clear()
                for event in reader.take():
                    yield event
                for event in await self._more(rid, reader, waiter):
                    yield event
            for event in await self._rest(rid, reader, waiter):
                yield event
            yield End(waiter.future.result())
        finally:
            waiter.future.remove_done_callback(wake)
            self._readers[rid].discard(reader)
            if not self._readers[rid]:
                del self._readers[rid]

    async def _more(self, rid: str, reader: _Reader, waiter: Waiter) -> list[Text | Reset]:
        """What the part has, where that is needed; else nothing, once there are chunks or an answer."""
        if reader.needs_part(asyncio.get_running_loop().time()):
            try:
                return await self._look(rid, reader, waiter)
            except BrokerUnavailable as error:
                log.debug("the text of %s waits for the broker: %s", rid, error)
                with suppress(TimeoutError):
                    async with asyncio.timeout(AGAIN_S):
                        await reader.woken.wait()
                return []
        await reader.woken.wait()
        return []

    async def _rest(self, rid: str, reader: _Reader, waiter: Waiter) -> list[Text | Reset]:
        """What is still missing at the end: by its answer, or by its part where it has none."""
        answer, events = waiter.future.result(), reader.take()
        if answer.body is not None:
            outcome = answer.outcome
            events += reader.assembler.complete(outcome.grants, outcome.token, answer.body.text)
            return merged(events)
        try:
            while reader.needs_part(asyncio.get_running_loop().time()):
                events += await self._look(rid, reader, waiter)
        except BrokerUnavailable as error:
            log.debug("the end of the text of %s is not known: %s", rid, error)
        return merged(events)

    async def _look(self, rid: str, reader: _Reader, waiter: Waiter) -> list[Text | Reset]:
        """Be among those who are told, and read the part from the reader's place on: nothing falls between the two."""
        assembler = reader.assembler
        place = (assembler.attempt, assembler.offset)
        at = f"{place[0]}-{place[1] + 1}"
        call = self._shards.of(rid).attach(rid, self._api_id, at, PIECES)
        reader.is_behind = False
        try:
            verdict, *pieces = await self._line.run(call)
        except Exception:
            reader.fall_behind()
            raise
        events = merged(event for piece in pieces for event in assembler.add(_chunk(piece)))
        if len(pieces) == PIECES and place != (assembler.attempt, assembler.offset):
            reader.fall_behind()  # there may be more of it
        elif assembler.has_gap:
            reader.stuck_at = asyncio.get_running_loop().time()
        self._waiters.mark_submitted(rid)
        if verdict == b"GONE" and not waiter.future.done():
            # If it has not ended either, the next reconcile finds that the broker knows nothing of it.
            waiter.checked_at = float("-inf")
            await self._deliver(rid)
        return events


def _chunk(piece: Any) -> Chunk:
    """Of an entry of a part: its id is `<attempt>-<offset + 1>`."""
    attempt, _, at = piece[0].decode().partition("-")
    token, data = piece[1][1], piece[1][3]
    return Chunk(int(attempt), int(at) - 1, data.decode(), token.decode())
