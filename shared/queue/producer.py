"""The front door's half of the queue: submit, wait, look, cancel. One reader serves every waiter of the process."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

from shared.errors import Draining
from shared.queue import callbacks
from shared.queue.assembler import Place
from shared.queue.callbacks import Callback, Callbacks
from shared.queue.cancelling import CODE, MESSAGE, Cancelling
from shared.queue.connection import Connection
from shared.queue.dead_letters import DeadLetters
from shared.queue.ending import CHUNK, Kept
from shared.queue.figures import Figures
from shared.queue.fitness import Watch
from shared.queue.housekeeper import Housekeeper
from shared.queue.results import FETCH, Results
from shared.queue.scripts import Call
from shared.queue.shards import Shards
from shared.queue.snapshot import Caps, Snapshot, Submitted, parse_snapshot
from shared.queue.stats import QueueStats
from shared.queue.streams import Event
from shared.queue.submitting import Submitting
from shared.queue.system_prompt import StoredPrompt
from shared.queue.upkeep import Step, keep
from shared.queue.waiters import Answer, Waiters, Watched
from shared.request import Req
from shared.settings import QueueSettings
from shared.worker_info import WorkerSeen

log = logging.getLogger(__name__)
TICK_S = 1.0
RECONCILE_AFTER_S = 5.0


class Producer:
    """`start` needs no broker; whatever does raises BrokerUnavailable within the budget when it is away."""

    def __init__(
        self, connection: Connection, settings: QueueSettings, *, api_id: str | None = None
    ) -> None:
        self.api_id = api_id or f"api-{secrets.token_hex(6)}"
        self._settings = settings
        self._connection = connection
        self._line = connection.line
        self._shards = Shards(settings.queue_name, settings.shards)
        self._waiters = Waiters()
        self._callbacks = Callbacks(self._waiters)
        self._results = Results(connection, self._shards, self.api_id, self._waiters, self._abandon)
        self._prompt = StoredPrompt(self._line, self._shards[0])
        self._figures = Figures(self._line, self._shards, settings.lease_s)
        self._has_stream = False
        self._fitness = Watch(self._line, self._shards[0], settings)
        self._tasks: list[asyncio.Task[None]] = []
        self.letters = DeadLetters(self._line, self._shards, self._fitness)
        self._cancelling = Cancelling(connection, self._shards, Kept.of(settings))
        self._submitting = Submitting(
            self._line, self._shards, self.api_id, self._fitness, self._cancelling
        )

    async def start(self) -> None:
        housekeeper = Housekeeper(self._connection, self._settings)
        runs = (
            self._results.run(),
            keep(TICK_S, Step("the tick", self._tick)),
            keep(
                TICK_S,
                Step("looking at the broker", self._fitness.look),
                Step("the figures", self.stats),
                Step("the reconcile", self._reconcile),
            ),
            self._cancelling.run(),
            housekeeper.run(),
        )
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
        return self._line.is_up and self._fitness.problem is None

    @property
    def unfit(self) -> str | None:
        """Why the broker gets no request though it answers; None if it does."""
        return self._fitness.problem

    @property
    def waiting(self) -> int:
        return len(self._waiters)

    # --- ids

    def new_id(self, shard: int | None = None) -> str:
        """In any shard, unless one is named."""
        return self._shards.new_id(shard)

    def derived_id(self, tenant: str, kind: str, key: str) -> str:
        """The same for the same tenant and key, and out of reach for every other tenant."""
        return self._shards.derived_id(tenant, kind, key)

    def in_shard(self, rid: str, shard: int) -> str:
        """The same id, but for where it lives."""
        return self._shards.in_shard(rid, shard)

    def shard_of(self, rid: str) -> int:
        """Of an id that `holds` is true of. Raises KeyError for another."""
        return self._shards.number(rid)

    async def located(self, rid: str) -> str:
        """Where a derived id is known: one that depends on others went to their shard. Else it as it is."""
        places = [self._shards.in_shard(rid, shard) for shard in range(len(self._shards))]
        if len(places) == 1:
            return rid
        found = await self.snapshots(places)
        return next((at for at, known in zip(places, found, strict=True) if known), rid)

    def holds(self, rid: str) -> bool:
        """Whether it is an id that this queue can have given out."""
        return self._shards.holds(rid)

    # --- submit

    async def submit(
        self,
        req: Req,
        caps: Caps,
        *,
        watch: bool = False,
        owns_id: bool = True,
        held: bool = False,
        callback: Callback | None = None,
    ) -> Submitted:
        """Accept one request. With `watch` its waiter is there before it is; `callback` is called once it has ended.
        One that is `held` is given up when every front door that waits for it is gone.

        Raises QueueFull, IdempotencyMismatch, RefusedPredecessor, BrokerUnavailable, TypeError for a callback to be
        awaited. Where `owns_id` says that nobody else can have used this id, one that got through all the same is then
        ended.
        """
        callbacks.check(callback)
        # Who waits for the answer does not ask for its place in the queue, which costs a look at every lane.
        call = self._submitting.call(req, caps, held=held, wants_position=not watch)
        if not (watch or callback):
            return await self._submitting.one(req.id, call, owns_id)
        with await self._watch(req.id, call) as waiter:
            submitted = await self._submitting.one(req.id, call, owns_id)
            waiter.is_submitted = True
            if submitted.joined:
                await self._line.run(self._shards.of(req.id).attach(req.id, self.api_id))
                await self._results.deliver_from_store(req.id)
        self._keep_readers(req.id, watch, callback)
        return submitted

    async def submit_list(
        self,
        parent: Req,
        children: Sequence[Req],
        caps: Caps,
        *,
        watch: bool = False,
        owns_id: bool = True,
        held: bool = False,
        callback: Callback | None = None,
    ) -> Submitted:
        """A list: room for all is reserved first, then they go in by chunks. The rest is as for `submit`."""
        callbacks.check(callback)
        if not (watch or callback):
            return await self._submitting.list(parent, children, caps, owns_id, held)
        with await self._watch(parent.id) as waiter:
            submitted = await self._submitting.list(parent, children, caps, owns_id, held)
            waiter.is_submitted = True
            if submitted.joined:
                await self._results.deliver_from_store(parent.id)
        self._keep_readers(parent.id, watch, callback)
        return submitted

    def _keep_readers(self, rid: str, watch: bool, callback: Callback | None) -> None:
        if callback is not None:
            self._callbacks.add(rid, callback)
        if not watch:
            self._waiters.remove(rid)

    async def _watch(self, rid: str, call: Call | None = None) -> Watched:
        """The waiter is there from here on, and goes again if what is done with it fails."""
        if not self._has_stream:
            await self._tick()
        return Watched(self._waiters, rid, call)

    # --- waiting

    async def wait(self, rid: str, timeout_s: float) -> Answer:
        """The answer of a watched id. Raises TimeoutError (still watched), BrokerLost, CodecError, Draining."""
        waiter = self._waiters.get(rid)
        if waiter is None:
            raise KeyError(rid)
        return await waiter.wait(timeout_s)

    def unwatch(self, rid: str) -> None:
        self._waiters.remove(rid)

    async def attach(self, rid: str) -> Snapshot | None:
        """Watch an id of somebody else's (then `wait`, `unwatch`); its snapshot, None if never seen."""
        with await self._watch(rid) as waiter:
            await self._line.run(self._shards.of(rid).attach(rid, self.api_id))
            waiter.is_submitted = True
            snapshot = await self.peek(rid)
            if snapshot is not None and snapshot.outcome is not None:
                await self._results.deliver_from_store(rid)
        if snapshot is None:
            self._waiters.remove(rid)
        return snapshot

    async def stream(self, rid: str, after: Place | None = None) -> AsyncGenerator[Event, None]:
        """The text of an id as it grows: what there is of it from `after` on, then what comes, then its End.

        Any number may read one id, and each gets all of it. Raises BrokerUnavailable where the broker is away at the
        start, then what `wait` raises; BrokerLost also for an id that nothing is known of.
        """
        events = self._results.streams.read(rid, after)
        with await self._watch(rid):
            async with aclosing(events):
                async for event in events:
                    yield event
        self._waiters.remove(rid)

    async def carry_on(self, rids: Sequence[str]) -> None:
        """Held ones that their caller lets go of, and will ask for: a list's are those of its children."""
        for start in range(0, len(rids), CHUNK):
            part = rids[start : start + CHUNK]
            calls = (self._shards.of(rid).attach(rid, "") for rid in part)
            await asyncio.gather(*map(self._line.run, calls))

    # --- looking

    async def peek(self, rid: str) -> Snapshot | None:
        """None: never seen, or its record's life is over."""
        return parse_snapshot(rid, await self._line.run(self._shards.of(rid).peek(rid)))

    async def answer(self, rid: str) -> Answer | None:
        return (await self.answers([rid]))[0]

    async def answers(self, rids: Sequence[str]) -> list[Answer | None]:
        """Results with bodies, in order; None where it is not final (or unknown)."""
        return await self._results.answers(rids)

    async def snapshots(self, rids: Sequence[str]) -> list[Snapshot | None]:
        """`peek` for many, in one round trip."""
        return await self._results.snapshots(rids)

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
            await self._line.run(self._shards.of(rid).drop(rids[start : start + FETCH]))

    # --- system prompt, figures

    @property
    def known_system_prompt(self) -> tuple[str | None, int]:
        """Text and version, at most a second old while the broker answers."""
        return self._prompt.known

    async def system_prompt(self) -> tuple[str | None, int]:
        return await self._prompt.read()

    async def set_system_prompt(self, text: str | None, by: str) -> int:
        """Store the next version, which for None says that there is none. Returns its number."""
        return await self._prompt.write(text, by)

    @property
    def known_stats(self) -> QueueStats | None:
        return self._figures.known

    @property
    def known_workers(self) -> tuple[WorkerSeen, ...]:
        return self._figures.workers

    async def stats(self) -> QueueStats:
        return await self._figures.look()

    # --- background

    async def _tick(self) -> None:
        """That this process is there, in each shard. Nothing may hold it up: without it held requests are given up."""
        lease_ms = int(self._settings.lease_s * 1000)
        for number, scripts in enumerate(self._shards):
            last_id = self._results.last_id(scripts.keys.out(self.api_id))
            reply = await self._line.run(scripts.tick(lease_ms, self.api_id, last_id))
            if int(reply[3]):
                # The stream was gone and notices with it.
                self._results.has_lost = True
            if number == 0:
                await self._prompt.keep_up(int(reply[2]))
        self._has_stream = True

    async def _reconcile(self) -> None:
        await self._results.reconcile(RECONCILE_AFTER_S)

    def _abandon(self, rid: str) -> None:
        self.cancel_later(rid, message="its client left while the broker was away")
