"""Claiming over every shard: what a worker asks for, what it is given, and that nothing on its way gets lost."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from shared.errors import BrokerUnavailable
from shared.queue.line import Line
from shared.queue.scripts import Call, Scripts
from shared.queue.shards import Shards
from shared.queue.transitions import moved
from shared.queue.upkeep import Complaint
from shared.request import short
from shared.status import ReqStatus

log = logging.getLogger(__name__)
# Requests in one beat: their records are read while the broker does nothing else.
BEAT_MAX = 64
# Of what a claim at the bell gave, until the first beat: its worker may have stopped while it waited. No shorter, since
# a broker that stands still for 5 s shall cost nobody a lease.
AHEAD_LEASE_MS = 6000


class Grant(msgspec.Struct, frozen=True):
    """One claimed request. `token` proves the lease; `remaining_ms` to its deadline at the claim."""

    id: str
    token: str
    remaining_ms: int
    grants: int
    crashes: int
    attempts: int
    apis: list[str]
    payload: bytes

    def __repr__(self) -> str:
        size = f"{len(self.payload)} bytes"
        return f"Grant(id={short(self.id)}, token={self.token!r}, crashes={self.crashes}, {size})"


class Claimed(msgspec.Struct, frozen=True):
    """`solo`: these are suspects, run nothing beside them. `suspects`, `remaining`: what is still queued."""

    grants: list[Grant]
    suspects: int
    paused: bool
    remaining: int
    solo: bool = False


class Ahead(msgspec.Struct, frozen=True):
    """A claim that the server holds until a bell rings. `seq` is its number."""

    shard: int
    seq: int
    call: Call


class _Shard:
    """The claims on one shard: numbered, one at a time, the number kept until its reply is here.

    `is_open`: it is not known what came of the last one.
    """

    __slots__ = ("complaint", "is_open", "scripts", "seen", "seq", "suspects")

    def __init__(self, scripts: Scripts) -> None:
        self.scripts = scripts
        self.complaint = Complaint(f"a claim ({scripts.keys.prefix})")
        # From anywhere: a token is this number and the shard's counter. That falls back with its shard, and then two
        # workers that began alike would have the same token.
        self.seq = 1 + secrets.randbits(31)
        self.seen = 0
        self.suspects = 0  # as it was told last
        self.is_open = False


class Claiming:
    """One worker's claims. `first` is the shard that is asked first: whose bell rang, else each in turn."""

    def __init__(self, line: Line, shards: Shards, worker: str, lease_s: float) -> None:
        self.first = 0
        self._line = line
        self._shards = shards
        self._worker = worker
        self._lease_ms = int(lease_s * 1000)
        self._all = [_Shard(scripts) for scripts in shards]
        # What a claim had that was cancelled before it had asked every shard.
        self._parts: list[Claimed] = []

    async def claim(self, n: int, *, is_idle: bool, slots: int, max_bytes: int) -> Claimed:
        """Up to n requests; raises BrokerUnavailable. Cancelled, it leaves what it had to the next one."""
        failure: Exception | None = None
        asked = 0
        # Where something may have been given already comes first: it is given again, whatever room there is by then.
        for shard in sorted(self._in_turn(), key=lambda shard: not shard.is_open):
            if self._parts and not self._wants_more(n):
                break
            got = sum(len(part.grants) for part in self._parts)
            asked += 1
            try:
                part = await self._claim(shard, n - got, is_idle and not got, slots, max_bytes)
            except BrokerUnavailable as error:
                failure = error
                break  # away for all of them; what came is not kept waiting
            except Exception as error:
                shard.complaint.tell()
                failure = error
                continue
            self._parts.append(part)
        self.first = (self.first + asked) % len(self._all)
        if failure is not None and not self._parts:
            raise failure
        parts, self._parts = self._parts, []
        return parts[0] if len(self._all) == 1 else _merged(parts, self._all)

    def ahead(self, n: int, *, is_idle: bool, slots: int, max_bytes: int) -> Ahead | None:
        """A claim on the shard that is asked first, to be run as soon as a bell rings; None while it is not known what
        came of another there. Claims that are made meanwhile take its number, and then it gives nothing any more.
        """
        shard = self._all[self.first]
        if shard.is_open:
            return None
        shard.is_open = True
        lease_ms = min(self._lease_ms, AHEAD_LEASE_MS)
        call = self._call(shard, n, is_idle, slots, max_bytes, lease_ms)
        return Ahead(self.first, shard.seq, call)

    def taken_ahead(self, ahead: Ahead, reply: Any) -> Claimed | None:
        """What it gave. None where that is not known, or has been had from another claim with its number."""
        shard = self._all[ahead.shard]
        if not isinstance(reply, list) or shard.seq != ahead.seq:
            return None
        shard.is_open = False
        return self._taken(shard, reply)

    async def under_way(self) -> list[Grant]:
        """What earlier claims were given that nobody has got: for a worker that claims no more."""
        for shard in self._all:
            if shard.is_open:
                try:
                    self._parts.append(await self._claim(shard, 0, True, 1, 1))
                except Exception:
                    shard.complaint.tell()  # what it may have been given comes back with its lease
        parts, self._parts = self._parts, []
        return [grant for part in parts for grant in part.grants]

    def beats(
        self, held: Mapping[str, tuple[str, bool]]
    ) -> Iterator[tuple[Scripts, int, dict[str, tuple[str, bool]]]]:
        """For each beat to send: where, the last claim whose reply is here, and what of `held` it is for.

        Of every shard there is one, those without any too: it is how the worker is known to serve them.
        """
        # The newest first: they are of the last claim, which is what a beat looks for orphans in.
        newest = list(held)[::-1]
        for number, shard in enumerate(self._all):
            here = newest
            if len(self._all) > 1:
                here = [rid for rid in newest if self._shards.number(rid) == number]
            for start in range(0, max(1, len(here)), BEAT_MAX):
                part = {rid: held[rid] for rid in here[start : start + BEAT_MAX]}
                yield shard.scripts, shard.seen if start == 0 else 0, part

    def _in_turn(self) -> list[_Shard]:
        return [*self._all[self.first :], *self._all[: self.first]]

    def _wants_more(self, n: int) -> bool:
        """Suspects come alone, so that nothing of another shard may come beside them."""
        got = sum(len(part.grants) for part in self._parts)
        return got < max(n, 1) and not any(part.solo for part in self._parts)

    async def _claim(
        self, shard: _Shard, n: int, is_idle: bool, slots: int, max_bytes: int
    ) -> Claimed:
        # Whatever comes between call and reply, the number stays: the next claim repeats it and gets the same grants.
        shard.is_open = True
        seq = shard.seq
        reply = await self._line.run(
            self._call(shard, n, is_idle, slots, max_bytes, self._lease_ms)
        )
        if shard.seq != seq:
            # A claim ahead had the same number and was answered first: these grants are known.
            return Claimed([], shard.suspects, bool(reply[1]), int(reply[3]))
        shard.is_open = False
        return self._taken(shard, reply)

    def _call(
        self, shard: _Shard, n: int, is_idle: bool, slots: int, max_bytes: int, lease_ms: int
    ) -> Call:
        return shard.scripts.claim(self._worker, shard.seq, n, max_bytes, lease_ms, is_idle, slots)

    def _taken(self, shard: _Shard, reply: list[Any]) -> Claimed:
        verdict, paused, suspects, remaining, solo, *grants = reply
        if verdict == b"STALE":
            log.warning("claim %d was answered as stale", shard.seq)
        shard.seen = shard.seq
        shard.seq += 1
        shard.suspects = int(suspects)
        found = [_grant(fields) for fields in grants]
        for grant in found:
            moved(grant.id, ReqStatus.PENDING, ReqStatus.RUNNING, "claim")
        return Claimed(found, int(suspects), bool(paused), int(remaining), bool(solo))


def _merged(parts: Sequence[Claimed], shards: Sequence[_Shard]) -> Claimed:
    """What several shards gave. A shard that was not asked may hold work, and the suspects that it told of last."""
    return Claimed(
        [grant for part in parts for grant in part.grants],
        suspects=sum(shard.suspects for shard in shards),
        paused=all(part.paused for part in parts),
        remaining=sum(part.remaining for part in parts) + len(shards) - len(parts),
        solo=any(part.solo for part in parts),
    )


def _grant(fields: list[Any]) -> Grant:
    rid, token, remaining, grants, crashes, attempts, apis, payload = fields
    return Grant(
        rid.decode(),
        token.decode(),
        int(remaining),
        int(grants),
        int(crashes),
        int(attempts),
        [api for api in apis.decode().split(",") if api],
        payload,
    )
