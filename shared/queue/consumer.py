"""The worker's half of the queue: claim, beat, finish, give back. Every write is fenced by the grant's token."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any

import msgspec

from shared import codec
from shared.queue.connection import Connection
from shared.queue.ending import INLINE_MAX
from shared.queue.keys import Keys
from shared.queue.scripts import Scripts
from shared.queue.transitions import moved
from shared.request import Body, Report, parent_of, short
from shared.settings import QueueSettings
from shared.status import RECORD_STATES, ReqStatus
from shared.worker_info import WorkerInfo

log = logging.getLogger(__name__)
RETRY_DELAY_MS = 500
MESSAGE_MAX = 500


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


class BeatReply(msgspec.Struct, frozen=True):
    """`lost`: no longer ours, stop them. `orphaned`: ours, but not held by us: give them back."""

    lost: list[str]
    orphaned: list[tuple[str, str]]
    draining: bool
    paused: bool


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
        self._keys = Keys(settings.queue_name)
        self._scripts = Scripts(self._keys)
        self._connection = connection
        self._line = connection.line
        self._bell = connection.reader("waiting for work")
        self._beats = connection.sync_line()
        self._seq = 1
        self._seq_seen = 0
        self._claiming: asyncio.Future[Any] | None = None
        self._notifying: set[asyncio.Task[None]] = set()

    @property
    def lease_s(self) -> float:
        """How long a claim lasts without a beat."""
        return self._settings.lease_s

    async def claim(
        self, n: int, *, is_idle: bool, slots: int | None = None, max_bytes: int = 4 << 20
    ) -> Claimed:
        """Up to n requests. Suspects come only to an idle worker, apart from others.

        Cancelling this does not lose grants: `leave` gives back what was on its way.
        """
        if self._claiming is None:
            lease_ms = int(self._settings.lease_s * 1000)
            call = self._scripts.claim(
                self.name, self._seq, n, max_bytes, lease_ms, is_idle, slots or n
            )
            # On BrokerUnavailable the number stays: the next claim repeats it and gets the same grants.
            self._claiming = self._line.send(call)
        try:
            reply = await asyncio.shield(self._claiming)
        except Exception:
            self._claiming = None
            raise
        # Cleared only once the caller has it: whoever was cancelled meanwhile leaves it for the next.
        self._claiming = None
        return self._claimed(reply)

    def _claimed(self, reply: list[Any]) -> Claimed:
        verdict, paused, suspects, remaining, solo, *grants = reply
        if verdict == b"STALE":
            log.warning("claim %d was answered as stale", self._seq)
        self._seq_seen = self._seq
        self._seq += 1
        found = [_grant(fields) for fields in grants]
        for grant in found:
            moved(grant.id, ReqStatus.PENDING, ReqStatus.RUNNING, "claim")
        return Claimed(
            found,
            int(suspects),
            bool(paused),
            int(remaining),
            bool(solo),
        )

    async def wait_for_work(self, timeout_s: float, *, wants_work: bool) -> list[str]:
        """Until the bell rings, a request of ours was ended (its id is returned), or the time is over."""
        keys = [self._keys.ctl(self.name)]
        if wants_work:
            keys.append(self._keys.fixed("bell"))
        reply = await self._bell.run(("BZPOPMIN", *keys, timeout_s), timeout_s)
        if reply is None or reply[0].decode() != keys[0]:
            return []
        return [reply[1].decode()]

    async def ring(self) -> None:
        """Wake another worker: there is work that this one heard of and cannot take."""
        await self._line.run(("ZADD", self._keys.fixed("bell"), 0, "w"))

    def beat(self, held: Mapping[str, tuple[str, bool]], info: WorkerInfo) -> BeatReply:
        """Blocking; for the beat thread only. `held`: id to (token, has it started). BrokerUnavailable if away."""
        lease_ms = int(self._settings.lease_s * 1000)
        raw = codec.encode(info)
        reply = self._beats.run(self._scripts.beat(self.name, lease_ms, self._seq_seen, raw, held))
        orphans = [part.decode() for part in reply[4]]
        return BeatReply(
            [rid.decode() for rid in reply[3]],
            list(zip(orphans[::2], orphans[1::2], strict=True)),
            draining=bool(reply[2]),
            paused=bool(reply[1]),
        )

    async def finish(
        self, grant: Grant, report: Report, body: Body | None, *, code: str = "", message: str = ""
    ) -> Finished:
        """Store the result: FINISHED, or ERROR where `code` is given.

        Waits for as long as the broker is away or takes no writes.
        """
        parent = parent_of(grant.id) or ""
        reply = await self._line.run(
            self._scripts.finish(
                grant.id,
                self.name,
                grant.token,
                "E" if code else "F",
                code,
                message[:MESSAGE_MAX],
                codec.encode_report(report),
                codec.encode(body) if body is not None else None,
                int(self._settings.result_record_ttl_s * 1000),
                int(self._settings.result_body_ttl_s * 1000),
                INLINE_MAX,
                grant.apis,
                parent,
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
        await self._line.run(self._scripts.notify(rid, api, INLINE_MAX), patient=True)

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
        if not held:
            return
        call = self._scripts.nack(
            self.name,
            how,
            cause[:MESSAGE_MAX],
            held,
            max_attempts=self._settings.max_attempts,
            max_crashes=self._settings.max_crashes,
            delay_ms=RETRY_DELAY_MS,
        )
        verdicts = await self._line.run(call, patient=True)
        for (rid, _), verdict in zip(held, verdicts, strict=True):
            if verdict == b"OK":
                moved(rid, ReqStatus.RUNNING, ReqStatus.PENDING, how)

    async def settle(self, grant: Grant, report: Report) -> None:
        """What a run had used up when its request was ended under it."""
        text, tokens = codec.encode_report(report), report.usage.completion_tokens
        call = self._scripts.settle(grant.id, grant.token, text, tokens)
        await self._line.run(call, patient=True)

    async def leave(self) -> None:
        """A clean stop: what a claim still had on its way is given back, own keys go."""
        if self._claiming is not None:
            done = await asyncio.gather(self._claiming, return_exceptions=True)
            if not isinstance(done[0], BaseException):
                await self.release(self._claimed(done[0]).grants)
        fields = [f"{kind}:{self.name}" for kind in ("i", "b", "c")]
        command: tuple[Any, ...] = ("HDEL", self._keys.fixed("wk"), *fields)
        await self._line.run(command)
        await self._line.run(("DEL", self._keys.ctl(self.name)))
        await asyncio.gather(*self._notifying, return_exceptions=True)
        self._bell.close()

    def close_beats(self) -> None:
        """After the beat thread has ended."""
        self._beats.close()


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
