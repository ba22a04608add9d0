"""Dead letters: requests that were given up, kept with their payload. Looked at, taken away, made requests again.

A letter's id is `<shard>-<entry in the shard's stream>`; several shards are shown as one list, by time.
"""

from __future__ import annotations

import asyncio
import re
from typing import Any, NamedTuple

import msgspec

from shared import codec
from shared.errors import CodecError, InvalidRequest
from shared.queue import submission
from shared.queue.fitness import Watch
from shared.queue.line import Line
from shared.queue.shards import Shards
from shared.queue.snapshot import Caps, Submitted
from shared.queue.transitions import moved
from shared.request import Outcome
from shared.status import ReqStatus

_ID = re.compile(r"(\d{1,4})-(\d{1,15})-(\d{1,15})", re.ASCII)


class Letter(msgspec.Struct, frozen=True):
    """One dead request. `outcome` is None where it cannot be read; `at_ms` is by the server's clock."""

    id: str
    request_id: str
    at_ms: int
    payload_bytes: int
    outcome: Outcome | None


class _Place(NamedTuple):
    """Where a letter lies, ordered as letters are: by time, number in that millisecond, shard."""

    ms: int
    n: int
    shard: int

    @classmethod
    def read(cls, letter_id: str) -> _Place | None:
        match = _ID.fullmatch(letter_id)
        return cls(int(match[2]), int(match[3]), int(match[1])) if match else None

    @property
    def entry(self) -> str:
        return f"{self.ms}-{self.n}"

    @property
    def id(self) -> str:
        return f"{self.shard}-{self.entry}"

    def older_in(self, shard: int) -> str:
        """From where a shard holds what comes after this one in the list."""
        return self.entry if shard < self.shard else f"({self.entry}"


class DeadLetters:
    def __init__(self, line: Line, shards: Shards, fitness: Watch) -> None:
        self._line = line
        self._fitness = fitness
        self._shards = shards

    async def page(self, n: int, before: str | None = None) -> tuple[list[Letter], bool]:
        """At most n, the newest first, from the one after `before` on; and whether there are older ones.

        Raises InvalidRequest for a `before` that is no letter's id.
        """
        cursor = None if before is None else _Place.read(before)
        if before is not None and cursor is None:
            raise InvalidRequest("cursor: is none of this list", param="cursor")
        replies = await asyncio.gather(
            *(
                self._line.run(scripts.list_letters(cursor.older_in(shard) if cursor else "+", n))
                for shard, scripts in enumerate(self._shards)
            )
        )
        found: list[tuple[_Place, Letter]] = []
        # Where a shard has more to tell, nothing older than what it told can be shown yet.
        oldest = _Place(0, 0, 0)
        for shard, (more, *entries) in enumerate(replies):
            letters = [_letter(shard, entry) for entry in entries]
            found += letters
            if more:
                oldest = max(oldest, letters[-1][0])
        told = sorted((pair for pair in found if pair[0] >= oldest), reverse=True, key=_by_place)
        shown = [letter for _, letter in told[:n]]
        return shown, len(shown) < len(found) or any(reply[0] for reply in replies)

    async def look(self, letter_id: str) -> tuple[Letter, bytes] | None:
        """The letter and its payload as it was queued; None where there is none of that id."""
        place = self._place(letter_id)
        if place is None:
            return None
        key = self._shards[place.shard].keys.fixed("dlq")
        entries = await self._line.run(("XRANGE", key, place.entry, place.entry))
        if not entries:
            return None
        entry_id, (_, rid, _, payload, _, outcome) = entries[0]
        return _letter(place.shard, [entry_id, rid, len(payload), outcome])[1], payload

    async def requeue(self, letter_id: str, caps: Caps) -> Submitted | None:
        """A new request of the same tenant and priority, its times from now on; the letter is gone then.

        Its id is made from the letter's, so that a second time joins it. None where there is no such letter. Raises
        CodecError for a payload that cannot be read, QueueFull, RefusedPredecessor.
        """
        place = self._place(letter_id)
        if place is None:
            return None
        scripts = self._shards[place.shard]
        rid = self._shards.in_shard(self._shards.derived_id("", "letter", letter_id), place.shard)
        await self._fitness.require()
        found = await self.look(letter_id)
        if found is None:
            _, kind, *_ = await self._line.run(scripts.peek(rid))
            return None if kind == b"none" else Submitted(rid, None, 0, joined=True)
        letter, payload = found
        old = codec.decode_req(payload)
        delivery = msgspec.structs.replace(old.delivery, retried_from=letter.request_id)
        req = msgspec.structs.replace(old, id=rid, delivery=delivery)
        meta = submission.meta(req, api_id="", held=False, wants_position=True)
        share = caps.share(len(self._shards))
        call = scripts.requeue_letter(place.entry, rid, codec.encode(req), meta, share)
        reply = await self._line.run(call)
        if reply[0] == b"GONE":
            return None
        if reply[0] == b"OK":
            moved(rid, None, ReqStatus.PENDING, "requeued")
        return submission.submitted(rid, reply)

    async def drop(self, letter_id: str) -> bool:
        """Whether it was there."""
        place = self._place(letter_id)
        if place is None:
            return False
        call = self._shards[place.shard].drop_letter(place.entry)
        return bool((await self._line.run(call))[0] == b"OK")

    def _place(self, letter_id: str) -> _Place | None:
        place = _Place.read(letter_id)
        return place if place is not None and place.shard < len(self._shards) else None


def _letter(shard: int, entry: list[Any]) -> tuple[_Place, Letter]:
    ms, _, n = entry[0].decode().partition("-")
    place = _Place(int(ms), int(n), shard)
    try:
        outcome = codec.decode_outcome(entry[3])
    except CodecError:
        outcome = None
    return place, Letter(place.id, entry[1].decode(), place.ms, int(entry[2]), outcome)


def _by_place(pair: tuple[_Place, Letter]) -> _Place:
    return pair[0]
