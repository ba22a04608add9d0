"""The front door's half of the queue: submit, wait, look, cancel. One reader serves every waiter of the process."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import logging
import secrets
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import msgspec
from ulid import ULID

from shared import codec
from shared.errors import BrokerUnavailable, Draining, IdempotencyMismatch, QueueFull
from shared.queue import callbacks
from shared.queue import stats as queue_stats
from shared.queue.callbacks import Callback, Callbacks
from shared.queue.cancelling import CODE, MESSAGE, Cancelling
from shared.queue.connection import Connection
from shared.queue.ending import CHUNK
from shared.queue.fitness import look_at
from shared.queue.housekeeper import Housekeeper
from shared.queue.keys import Keys
from shared.queue.results import FETCH, Results
from shared.queue.scripts import Call, Scripts
from shared.queue.snapshot import Caps, Snapshot, Submitted, parse_snapshot
from shared.queue.stats import QueueStats
from shared.queue.transitions import moved
from shared.queue.waiters import Answer, Waiters
from shared.request import Record, Req
from shared.settings import QueueSettings
from shared.status import ReqStatus
from shared.worker_info import WorkerSeen

log = logging.getLogger(__name__)
TICK_S = 1.0
RECONCILE_AFTER_S = 5.0
LOOK_S = 30.0


class Producer:
    """`start` needs no broker; whatever does raises BrokerUnavailable within the budget when it is away."""

    def __init__(
        self, connection: Connection, settings: QueueSettings, *, api_id: str | None = None
    ) -> None:
        self.api_id = api_id or f"api-{secrets.token_hex(6)}"
        self.known_system_prompt: tuple[str | None, int] = (None, 0)
        self.known_workers: tuple[WorkerSeen, ...] = ()
        self.known_stats: QueueStats | None = None
        self._settings = settings
        self._connection = connection
        self._line = connection.line
        self._keys = Keys(settings.queue_name)
        self._scripts = Scripts(self._keys)
        self._waiters = Waiters()
        self._callbacks = Callbacks(self._waiters)
        self._results = Results(connection, self._scripts, self.api_id, self._waiters)
        self._has_stream = False
        self._unfit: str | None = None
        self._looked_at = float("-inf")
        self._tasks: list[asyncio.Task[None]] = []
        self._ttl_ms = int(settings.result_record_ttl_s * 1000)
        self._prompt_version = -1
        self._cancelling = Cancelling(connection, self._scripts, self._ttl_ms)

    async def start(self) -> None:
        housekeeper = Housekeeper(self._connection, self._settings)
        runs = (self._results.run(), self._keep(), self._cancelling.run(), housekeeper.run())
        self._tasks = [asyncio.create_task(run) for run in runs]

    async def close(self) -> None:
        """Whoever still waits is told so (Draining), callbacks too: nothing is delivered here any more."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._results.close()
        message = "this process is stopping; the request stays queued under its id"
        self._waiters.fail_all(Draining(message, retry_after_s=5))
        await asyncio.sleep(0)  # callbacks run in the loop's next turn, and before this returns

    @property
    def is_up(self) -> bool:
        """Whether the broker answered the last call, and may be trusted with requests."""
        return self._line.is_up and self._unfit is None

    @property
    def unfit(self) -> str | None:
        """Why the broker gets no request though it answers; None if it does."""
        return self._unfit

    @property
    def waiting(self) -> int:
        return len(self._waiters)

    # --- ids

    def new_id(self) -> str:
        return f"{self._settings.queue_name}.0-{str(ULID()).lower()}"

    def derived_id(self, tenant: str, kind: str, key: str) -> str:
        """The same for the same tenant and key, and out of reach for every other tenant."""
        digest = hashlib.blake2b("\0".join((tenant, kind, key)).encode(), digest_size=20).digest()
        return f"{self._settings.queue_name}.0-{base64.b32encode(digest).decode().lower()}"

    # --- submit

    async def submit(
        self,
        req: Req,
        caps: Caps,
        *,
        watch: bool = False,
        owns_id: bool = True,
        callback: Callback | None = None,
    ) -> Submitted:
        """Accept one request. With `watch` its waiter is there before it is; `callback` is called once it has ended.

        Raises QueueFull, IdempotencyMismatch, BrokerUnavailable, TypeError for a callback to be awaited. Where
        `owns_id` says that nobody else can have used this id, one that got through all the same is then ended.
        """
        callbacks.check(callback)
        call = self._scripts.submit(req.id, codec.encode(req), self._meta(req), caps.packed)
        if not (watch or callback):
            return await self._submit(req.id, call, owns_id)
        async with self._watching(req.id, call):
            submitted = await self._submit(req.id, call, owns_id)
            self._waiters.mark_submitted(req.id)
            if submitted.joined:
                await self._line.run(self._scripts.attach(req.id, self.api_id))
                await self._results.deliver_from_store(req.id)
        self._keep_readers(req.id, watch, callback)
        return submitted

    async def _submit(self, rid: str, call: Call, owns_id: bool) -> Submitted:
        submitted = self._submitted(rid, await self._run_submit(rid, call, owns_id))
        # Under an id of its own there was nobody to join but itself: the reply to its first run was lost.
        if owns_id or not submitted.joined:
            moved(rid, None, ReqStatus.PENDING, "submitted")
        return submitted

    async def submit_list(
        self,
        parent: Req,
        children: Sequence[Req],
        caps: Caps,
        *,
        watch: bool = False,
        owns_id: bool = True,
        callback: Callback | None = None,
    ) -> Submitted:
        """A list: room for all is reserved first, then they go in by chunks. The rest is as for `submit`."""
        callbacks.check(callback)
        if not (watch or callback):
            return await self._submit_list(parent, children, caps, owns_id)
        async with self._watching(parent.id):
            submitted = await self._submit_list(parent, children, caps, owns_id)
            self._waiters.mark_submitted(parent.id)
            if submitted.joined:
                await self._results.deliver_from_store(parent.id)
        self._keep_readers(parent.id, watch, callback)
        return submitted

    def _keep_readers(self, rid: str, watch: bool, callback: Callback | None) -> None:
        if callback is not None:
            self._callbacks.add(rid, callback)
        if not watch:
            self._waiters.remove(rid)

    @asynccontextmanager
    async def _watching(self, rid: str, call: Call | None = None) -> AsyncIterator[None]:
        """The waiter is there from here on, and goes again if what is done inside fails."""
        if not self._has_stream:
            await self._tick()
        self._waiters.add(rid, call)
        try:
            yield
        except BaseException:
            self._waiters.remove(rid)
            raise

    async def _submit_list(
        self, parent: Req, children: Sequence[Req], caps: Caps, owns_id: bool
    ) -> Submitted:
        delivery = _delivery(parent)
        tokens = sum(child.cost_tokens for child in children)
        reply = await self._run_submit(
            parent.id,
            self._scripts.reserve(
                parent.id,
                len(children),
                tokens,
                parent.tenant,
                parent.digest,
                self.api_id,
                delivery,
                caps.packed,
            ),
            owns_id,
        )
        if reply[0] == b"DUP":
            await self._line.run(self._scripts.attach(parent.id, self.api_id))
        place = (0,) if reply[0] in (b"OK", b"DUP") else ()
        submitted = self._submitted(parent.id, [reply[0], *place, *reply[1:]])
        if reply[0] in (b"OK", b"DUP"):
            # After DUP too: the first run of this may have ended, or its reply been lost, before all were in.
            for start in range(0, len(children), CHUNK):
                chunk = children[start : start + CHUNK]
                packed = [
                    (codec.encode(child), child.cost_tokens, _delivery(child)) for child in chunk
                ]
                meta = self._meta(chunk[0])
                part = self._scripts.submit_many(parent.id, start, meta, packed)
                sent = await self._run_submit(parent.id, part, owns_id)
                if sent[0] not in (b"OK", b"DUP"):
                    break  # cancelled or timed out meanwhile: the list ends by its own rules
                if owns_id or sent[0] == b"OK":
                    for child in chunk:
                        moved(child.id, None, ReqStatus.PENDING, "submitted")
        return submitted

    async def _run_submit(self, rid: str, call: Call, owns_id: bool) -> Any:
        if self._unfit is not None:
            raise BrokerUnavailable(self._unfit)
        self._cancelling.not_later(rid)
        try:
            return await self._line.run(call)
        except (BrokerUnavailable, asyncio.CancelledError) as error:
            # It may have got through; nobody waits for it, so it must not run. Under an id that others
            # use too somebody may wait: there the same submit again finds it.
            if owns_id and (not isinstance(error, BrokerUnavailable) or error.may_have_run):
                self.cancel_later(rid, message="the broker did not answer when it was submitted")
            raise

    def _submitted(self, rid: str, reply: list[Any]) -> Submitted:
        verdict = reply[0]
        if verdict == b"MISMATCH":
            raise IdempotencyMismatch("this id was used with another body", param="id")
        if verdict == b"FULL":
            which = reply[1].decode()
            raise QueueFull(f"the queue is full ({which.replace('_', ' ')})")
        if verdict == b"DONE":
            return Submitted(rid, 0, 0, joined=True)
        return Submitted(rid, int(reply[1]), int(reply[2]), joined=verdict == b"DUP")

    def _meta(self, req: Req) -> list[Any]:
        return [
            int(req.priority),
            req.tenant,
            req.cost_tokens,
            int(req.timeout_s * 1000),
            int(req.queue_timeout_s * 1000),
            self.api_id,
            _delivery(req),
            req.digest,
            list(req.depends_on),
            req.webhook or "",
            req.traceparent or "",
            0,
        ]

    # --- waiting

    async def wait(self, rid: str, timeout_s: float) -> Answer:
        """The answer of a watched id. Raises TimeoutError (still watched), BrokerLost, CodecError, Draining."""
        waiter = self._waiters.get(rid)
        if waiter is None:
            raise KeyError(rid)
        async with asyncio.timeout(timeout_s):
            return await asyncio.shield(waiter.future)

    def unwatch(self, rid: str) -> None:
        self._waiters.remove(rid)

    async def attach(self, rid: str) -> Snapshot | None:
        """Watch an id of somebody else's (then `wait`, `unwatch`); its snapshot, None if never seen."""
        async with self._watching(rid):
            await self._line.run(self._scripts.attach(rid, self.api_id))
            self._waiters.mark_submitted(rid)
            snapshot = await self.peek(rid)
            if snapshot is not None and snapshot.outcome is not None:
                await self._results.deliver_from_store(rid)
        if snapshot is None:
            self._waiters.remove(rid)
        return snapshot

    # --- looking

    async def peek(self, rid: str) -> Snapshot | None:
        """None: never seen, or its record's life is over."""
        return parse_snapshot(rid, await self._line.run(self._scripts.peek(rid)))

    async def answer(self, rid: str) -> Answer | None:
        return (await self.answers([rid]))[0]

    async def answers(self, rids: Sequence[str]) -> list[Answer | None]:
        """Results with bodies, in order; None where it is not final (or unknown)."""
        return await self._results.answers(rids)

    async def snapshots(self, rids: Sequence[str]) -> list[Snapshot | None]:
        """`peek` for many, in one round trip."""
        return await self._results.snapshots(rids)

    async def request(self, record: Record) -> Req | None:
        """The request behind a live record."""
        entries = await self._line.run(
            ("XRANGE", self._keys.fixed("in"), record.entry_id, record.entry_id)
        )
        return codec.decode_req(entries[0][1][3]) if entries else None

    # --- ending

    async def cancel(
        self, rid: str, *, code: str = CODE, message: str = MESSAGE
    ) -> Snapshot | None:
        """End it wherever it is; what is final stays as it is. The snapshot after that, None if unknown."""
        return await self._cancelling.cancel(rid, code=code, message=message)

    def cancel_later(self, rid: str, *, code: str = CODE, message: str = MESSAGE) -> None:
        """As `cancel`, as soon as the broker answers again: for what must not run on for nobody."""
        self._cancelling.later(rid, code=code, message=message)

    async def drop(self, rid: str) -> None:
        """Take the answer away; that it was there stays known (410)."""
        snapshot = await self.peek(rid)
        if snapshot is None:
            return
        n = snapshot.outcome.n_children if snapshot.outcome else 0
        rids = [rid, *(f"{rid}.{i}" for i in range(n))]
        for start in range(0, len(rids), FETCH):
            await self._line.run(("UNLINK", *map(self._keys.body, rids[start : start + FETCH])))

    # --- system prompt, figures

    async def system_prompt(self) -> tuple[str | None, int]:
        text, version = await self._line.run(("HMGET", self._keys.fixed("sys"), "t", "v"))
        self.known_system_prompt = (None if text is None else text.decode(), int(version or 0))
        return self.known_system_prompt

    async def set_system_prompt(self, text: str | None, by: str) -> int:
        """Store the next version, which for None says that there is none. Returns its number."""
        version = int((await self._line.run(self._scripts.set_prompt(text, by)))[0])
        self.known_system_prompt = (text, version)
        return version

    async def stats(self) -> QueueStats:
        reply = await self._line.run(self._scripts.stats())
        fresh = queue_stats.parse(reply, self._settings.lease_s)
        before = self.known_stats
        rate = before.drain_rate_per_s if before else 0.0
        if before is not None and fresh.now_ms - before.now_ms >= 500:
            seconds = (fresh.now_ms - before.now_ms) / 1000
            latest = max(0, fresh.ended - before.ended) / seconds
            # A moving average over about 15 s, and none of the idle time: it tells how fast a queue drains.
            weight = min(1.0, seconds / 15)
            if fresh.live or latest:
                rate = latest if rate == 0 else rate + (latest - rate) * weight
        self.known_stats = msgspec.structs.replace(fresh, drain_rate_per_s=rate)
        self.known_workers = fresh.workers
        return self.known_stats

    # --- background

    async def _tick(self) -> None:
        lease_ms = int(self._settings.lease_s * 1000)
        reply = await self._line.run(
            self._scripts.tick(lease_ms, self.api_id, self._results.last_id)
        )
        self._has_stream = True
        if int(reply[2]) != self._prompt_version:
            await self.system_prompt()
            self._prompt_version = int(reply[2])
        if int(reply[3]):
            # The stream was gone and notices with it: ask for every waiter at once.
            await self._results.reconcile(0.0)

    async def _keep(self) -> None:
        while True:
            try:
                await self._tick()
                await self._look()
                await self.stats()
                await self._results.reconcile(RECONCILE_AFTER_S)
            except BrokerUnavailable as error:
                log.debug("waiting for the broker: %s", error)
            except Exception:
                log.exception("keeping the front door's half failed; it goes on")
            await asyncio.sleep(TICK_S)

    async def _look(self) -> None:
        """Whether the broker may be used; looked at again now and then, so that a cure needs no restart."""
        now = asyncio.get_running_loop().time()
        if now - self._looked_at < LOOK_S:
            return
        is_first, self._looked_at = self._looked_at == float("-inf"), now
        found = await look_at(self._line, self._keys)
        if found.problem and not self._unfit:
            log.critical("no request is taken: %s", found.problem)
        elif is_first and found.warning:
            log.warning("%s", found.warning)
        self._unfit = found.problem


def _delivery(req: Req) -> str:
    return msgspec.json.encode(req.delivery).decode()
