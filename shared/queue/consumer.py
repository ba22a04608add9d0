"""The worker's half of the queue: claim, beat, finish, give back. Every write is fenced by the grant's token."""

from __future__ import annotations

import asyncio
import logging
import random
import secrets
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any

import msgspec

from shared import codec
from shared.errors import BrokerUnavailable
from shared.queue.chains import answer_texts
from shared.queue.claiming import Ahead, Claimed, Claiming, Grant
from shared.queue.connection import Connection
from shared.queue.emitter import Emission, Emitter
from shared.queue.ending import INLINE_MAX, Kept
from shared.queue.scripts import Scripts
from shared.queue.shards import Shards
from shared.queue.transitions import moved
from shared.request import Body, Report, parent_of
from shared.settings import QueueSettings
from shared.status import RECORD_STATES, ReqStatus
from shared.worker_info import WorkerInfo

log = logging.getLogger(__name__)
RETRY_DELAY_MS = 500
MESSAGE_MAX = 500
CLAIM_MAX_BYTES = 1 << 20


class BeatReply(msgspec.Struct, frozen=True):
    """`lost`: no longer ours, stop them. `orphaned`: ours, but not held by us: give them back."""

    lost: list[str]
    orphaned: list[tuple[str, str]]
    draining: bool
    paused: bool


class Room(msgspec.Struct, frozen=True):
    """What a worker has room for: so many requests, and whether nothing runs in its `slots`."""

    n: int
    is_idle: bool
    slots: int


class News(msgspec.Struct, frozen=True):
    """`ended`: a request of ours that was ended by others. `claimed`: what the claim gave that waited along, if it is
    known. `is_all`: there is nothing to ask for besides.
    """

    ended: list[str] = []
    claimed: Claimed | None = None
    is_all: bool = False


class Finished(StrEnum):
    """LOST: the lease is another's or the request was ended. GONE: nothing is known of it any more."""

    OK = "OK"
    ALREADY = "ALREADY"
    LOST = "LOST"
    GONE = "GONE"


class Consumer:
    """One worker process. Its name in the queue is unique to the process, so that a restart shares no lease."""

    def __init__(self, connection: Connection, settings: QueueSettings, *, worker_id: str) -> None:
        self.name = f"{worker_id}.{secrets.token_hex(4)}"
        self._settings = settings
        self._kept = Kept.of(settings)
        self._shards = Shards(settings.queue_name, settings.shards)
        self._claiming = Claiming(connection.line, self._shards, self.name, settings.lease_s)
        self._connection = connection
        self._line = connection.line
        self._bell = connection.reader("waiting for work")
        self._beats = connection.sync_line()
        self._notifying: set[asyncio.Task[None]] = set()
        self._emitter = Emitter(self._line, self._shards, self.name)

    @property
    def lease_s(self) -> float:
        """How long a claim lasts without a beat."""
        return self._settings.lease_s

    async def claim(
        self,
        n: int,
        *,
        is_idle: bool,
        slots: int | None = None,
        max_bytes: int = CLAIM_MAX_BYTES,
    ) -> Claimed:
        """Up to n requests. Suspects come only to an idle worker, apart from others.

        Cancelling this does not lose grants: `leave` gives back what was on its way.
        """
        return await self._claiming.claim(n, is_idle=is_idle, slots=slots or n, max_bytes=max_bytes)

    async def wait_for_work(
        self, timeout_s: float, *, wants_work: bool, room: Room | None = None
    ) -> News:
        """Until the bell rings, a request of ours was ended, or the time is over.

        With `room` a claim for so much waits at the broker too, and is made there as soon as the wait is over. That
        saves a way to us and back; what it gave is `News.claimed`.
        """
        ctl = {s.keys.ctl(self.name): None for s in self._shards}
        bells = {s.keys.fixed("bell"): number for number, s in enumerate(self._shards)}
        command = ("BZPOPMIN", *ctl, *(bells if wants_work else ()), timeout_s)
        ahead = self._ahead(room) if room is not None else None
        if ahead is None:
            reply, claimed = await self._bell.run(command, timeout_s), None
        else:
            reply, given = await self._bell.run_both(command, ahead.call.command, timeout_s)
            claimed = self._claiming.taken_ahead(ahead, given)
        if reply is None:
            return News(claimed=claimed, is_all=claimed is not None and len(self._shards) == 1)
        key = reply[0].decode()
        if key not in bells:
            return News([reply[1].decode()], claimed)
        is_all = claimed is not None and ahead is not None and ahead.shard == bells[key]
        self._claiming.first = bells[key]
        return News(claimed=claimed, is_all=is_all)

    def _ahead(self, room: Room) -> Ahead | None:
        return self._claiming.ahead(
            room.n, is_idle=room.is_idle, slots=room.slots, max_bytes=CLAIM_MAX_BYTES
        )

    async def ring(self) -> None:
        """Wake another worker: there is work that this one heard of and cannot take."""
        await self._line.run(
            ("ZADD", self._shards[self._claiming.first].keys.fixed("bell"), 0, "w")
        )

    def beat(self, held: Mapping[str, tuple[str, bool]], info: WorkerInfo) -> BeatReply:
        """Blocking; for the beat thread only. `held`: id to (token, has it started). BrokerUnavailable if away."""
        lease_ms = int(self._settings.lease_s * 1000)
        raw = codec.encode(info)
        lost: list[str] = []
        orphaned: list[tuple[str, str]] = []
        is_draining = is_paused = False
        for scripts, seen, part in self._claiming.beats(held):
            reply = self._beats.run(scripts.beat(self.name, lease_ms, seen, raw, part))
            orphans = [each.decode() for each in reply[4]]
            lost += [rid.decode() for rid in reply[3]]
            orphaned += zip(orphans[::2], orphans[1::2], strict=True)
            is_draining = is_draining or bool(reply[2])
            is_paused = is_paused or bool(reply[1])
        # A call names a part of what is held, so the rest looks orphaned to it.
        orphaned = [
            (rid, token) for rid, token in orphaned if rid not in held or held[rid][0] != token
        ]
        return BeatReply(lost, orphaned, draining=is_draining, paused=is_paused)

    def emission(self, grant: Grant) -> Emission:
        """For one run: what it says goes to `emit` with this."""
        return Emission(grant.id, grant.token, grant.apis)

    def emit(self, emission: Emission, text: str) -> None:
        """More of its text, to be told to its readers by the next `flush`. Never waits."""
        self._emitter.add(emission, text)

    @property
    def has_unsent(self) -> bool:
        return self._emitter.is_pending

    async def flush(self) -> list[str]:
        """Tell readers what was emitted, up to 8,192 code points of each. Returns what is no longer ours: stop it.

        Where the broker is away or full this waits no longer than its budget, and the next flush sends it again.
        """
        return await self._emitter.flush()

    async def finish(
        self, grant: Grant, report: Report, body: Body | None, *, code: str = "", message: str = ""
    ) -> Finished:
        """Store the result: FINISHED, or ERROR where `code` is given.

        Waits for as long as the broker is away or takes no writes.
        """
        self._emitter.drop(grant.id)
        parent = parent_of(grant.id) or ""
        reply = await self._line.run(
            self._shards.of(grant.id).finish(
                grant.id,
                self.name,
                grant.token,
                "E" if code else "F",
                code,
                message[:MESSAGE_MAX],
                codec.encode_report(report),
                codec.encode(body) if body is not None else None,
                self._kept.record_ms,
                self._kept.body_ms,
                INLINE_MAX,
                grant.apis,
                parent,
                letters_max_bytes=self._kept.letters_max_bytes,
            ),
            patient=True,
        )
        for api in reply[2:]:
            task = asyncio.ensure_future(self._notify(parent or grant.id, api.decode()))
            self._notifying.add(task)
            task.add_done_callback(self._notifying.discard)
        finished = Finished(reply[0].decode())
        if finished is Finished.OK:
            # Not always RUNNING: a result that comes after its lease was lost counts until the next claim.
            was = RECORD_STATES[reply[1].decode()]
            to = ReqStatus.ERROR if code else ReqStatus.FINISHED
            moved(grant.id, was, to, code or report.finish_reason or "finish")
        return finished

    async def _notify(self, rid: str, api: str) -> None:
        try:
            await self._line.run(self._shards.of(rid).notify(rid, api, INLINE_MAX), patient=True)
        except BrokerUnavailable as error:
            # Closed for good: who waits there finds the outcome by its reconcile.
            log.debug("%s was not told of the end of %s: %s", api, rid, error)

    async def release(self, grants: Sequence[Grant]) -> None:
        """Hand back what has not started; nothing is counted against it."""
        await self._nack("release", "", [(g.id, g.token) for g in grants])

    async def release_ids(self, held: Sequence[tuple[str, str]]) -> None:
        """As `release`, by id and token."""
        await self._nack("release", "", held)

    async def retry(self, grant: Grant, cause: str) -> None:
        """It failed in a way that another try may mend: later again, or dead after MAX_ATTEMPTS."""
        await self._nack("retry", cause, [(grant.id, grant.token)])

    async def suspect(self, grants: Sequence[Grant], cause: str) -> None:
        """The engine died while these ran: each counts a crash and runs apart next time."""
        await self._nack("suspect", cause, [(g.id, g.token) for g in grants])

    async def _nack(self, how: str, cause: str, held: Sequence[tuple[str, str]]) -> None:
        tokens = dict(held)
        parts = self._shards.split(tokens)
        await asyncio.gather(
            *(
                self._nack_in(scripts, how, cause, [(r, tokens[r]) for r in rids])
                for scripts, rids in parts
            )
        )

    async def _nack_in(
        self, scripts: Scripts, how: str, cause: str, held: Sequence[tuple[str, str]]
    ) -> None:
        # Jittered, so that what failed together does not come back together.
        delay_ms = int(RETRY_DELAY_MS * random.uniform(0.5, 1.5))
        call = scripts.nack(
            self.name,
            how,
            cause[:MESSAGE_MAX],
            held,
            max_attempts=self._settings.max_attempts,
            max_crashes=self._settings.max_crashes,
            delay_ms=delay_ms,
        )
        verdicts = await self._line.run(call, patient=True)
        for (rid, _), verdict in zip(held, verdicts, strict=True):
            if verdict == b"OK":
                moved(rid, ReqStatus.RUNNING, ReqStatus.PENDING, how)

    async def answers(self, rids: Sequence[str]) -> dict[str, str]:
        """What requests of one shard were answered, by id; without those whose answer is no longer there."""
        return await answer_texts(self._line, self._shards.of(rids[0]), rids)

    async def settle(self, grant: Grant, report: Report) -> None:
        """What a run had used up when its request was ended under it."""
        text, tokens = codec.encode_report(report), report.usage.completion_tokens
        call = self._shards.of(grant.id).settle(grant.id, self.name, grant.token, text, tokens)
        await self._line.run(call, patient=True)

    async def leave(self) -> None:
        """A clean stop: what a claim still had on its way is given back, own keys go."""
        await self.release(await self._claiming.under_way())
        fields = [f"{kind}:{self.name}" for kind in ("i", "b", "c")]
        for scripts in self._shards:
            command: tuple[Any, ...] = ("HDEL", scripts.keys.fixed("wk"), *fields)
            await self._line.run(command)
            await self._line.run(("DEL", scripts.keys.ctl(self.name)))
        await asyncio.gather(*self._notifying, return_exceptions=True)
        self._bell.close()

    def close_beats(self) -> None:
        """After the beat thread has ended."""
        self._beats.close()
