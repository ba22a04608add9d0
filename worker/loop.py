"""Claim, batch, generate, finish: the worker's one loop, and the order of shutting down.

Never holds more than the engine has slots for; decides nothing about prompts, leases or results.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence

import msgspec

from shared import codec
from shared.errors import BrokerUnavailable, CodecError, EngineDead
from shared.queue.claiming import Claimed, Grant
from shared.queue.consumer import BeatReply, Consumer, Room
from shared.request import FinishReason, Report
from shared.worker_info import WorkerInfo, WorkerState
from worker.batcher import Batcher, Item
from worker.engines.base import Engine
from worker.generate import Generator, Prompts
from worker.leases import Leases
from worker.metrics import Rate, WorkerMetrics
from worker.running import Stop

log = logging.getLogger(__name__)
BELL_S = 1.0
FULL_S = 0.1
SUSPECTS_WAIT_S = 5.0
SUSPECTS_LOOK_S = 2.0
ABORT_S = 1.0
LAST_WORDS_S = 2.0


class Loop:
    """One engine, one queue. `stop` may be called from a signal handler; `run` returns the exit code."""

    def __init__(
        self,
        engine: Engine,
        prompts: Prompts,
        consumer: Consumer,
        *,
        info: WorkerInfo,
        metrics: WorkerMetrics,
        claim_max: int,
        drain_s: float,
        stall_limit_s: float,
        on_stalled: Callable[[float], None],
    ) -> None:
        self._engine = engine
        self._consumer = consumer
        self._base = info
        self._metrics = metrics
        self._claim_max = max(1, claim_max)
        self._drain_s = drain_s
        self._slots = engine.slots
        self._used = 0
        self._wake = asyncio.Event()
        self._has_looked = asyncio.Event()  # for work, since the bell rang
        self._has_rung = True  # what was queued before we came is claimed at once
        self._remaining = 0
        self._is_solo = False
        self._suspects_since: float | None = None
        self._look_at = 0.0
        self._is_stopping = False
        self._stopped_at = 0.0
        self._is_hurried = asyncio.Event()
        self._dead: EngineDead | None = None
        self._batches: set[asyncio.Task[None]] = set()
        self._state = WorkerState.READY
        self._rate = Rate()
        self._batcher = Batcher(info.id, engine.slots, engine.capabilities.rows_share)
        self._leases = Leases(
            consumer,
            info=self.info,
            progress=lambda: engine.progress,
            stall_limit_s=stall_limit_s,
            on_reply=self._on_beat,
            on_stalled=on_stalled,
        )
        self._generator = Generator(engine, prompts, consumer, self._leases, metrics, self._on_free)

    def stop(self) -> None:
        """Drain and return; called a second time, without waiting for what runs."""
        if self._is_stopping:
            self._is_hurried.set()
        else:
            self._stopped_at = time.monotonic()
        self._is_stopping = True
        self._generator.is_stopping = True  # what is still on its way to the engine goes back
        self._wake.set()

    async def run(self) -> int:
        """0 after a drain, 1 when the engine died."""
        self._leases.start()
        bell = asyncio.create_task(self._listen())
        try:
            while not self._is_stopping and self._dead is None:
                if self._may_claim():
                    await self._claim()
                else:
                    self._has_looked.set()
                    await self._sleep()
        finally:
            bell.cancel()
            await asyncio.gather(bell, return_exceptions=True)
        await self._shut_down()
        return 1 if self._dead is not None else 0

    def info(self) -> WorkerInfo:
        """What the worker tells with each beat. Read by the beat thread: plain reads only."""
        state = WorkerState.STALLED if self._leases.is_stalled else self._state
        if state is WorkerState.READY and self._used >= self._slots:
            state = WorkerState.BUSY
        self._metrics.state(state, self._engine.progress)
        return msgspec.structs.replace(
            self._base,
            state=state,
            running=self._used,
            finished_total=self._generator.finished_total,
            output_tokens_total=self._generator.output_tokens_total,
            tokens_per_s=round(
                self._rate.at(time.monotonic(), self._generator.output_tokens_total), 1
            ),
        )

    # --- claiming

    def _may_claim(self) -> bool:
        if self._is_emptying():
            return time.monotonic() >= self._look_at
        if not self._can_take():
            return False
        # Idle and asked, or a slot came free while the queue was known to hold more.
        return self._has_rung or self._remaining > 0

    def _can_take(self) -> bool:
        if self._used >= self._slots or self._is_stopping or self._leases.is_stalled:
            return False
        if self._used and (self._is_solo or self._owes_suspects()):
            return False
        if not self._used:
            self._is_solo = False
        return True

    def _owes_suspects(self) -> bool:
        """Suspects run with nothing beside them, so after a while this worker empties itself for them."""
        since = self._suspects_since
        return since is not None and time.monotonic() - since >= SUSPECTS_WAIT_S

    def _is_emptying(self) -> bool:
        """Only looks then, with claims of none: another may have taken them, and it is still to be us who does."""
        is_free = self._used == 0 or self._is_solo or self._leases.is_stalled
        return not is_free and self._owes_suspects()

    async def _claim(self) -> None:
        is_looking = self._is_emptying()
        free = 0 if is_looking else min(self._slots - self._used, self._claim_max)
        is_idle = self._used == 0
        # Before the call: a bell that rings while it is under way is for what it did not see.
        self._has_rung = False
        try:
            claimed = await self._asked(free, is_idle=is_idle)
        except BrokerUnavailable:
            # The connection has backed off and logged; the bell's time-out brings us back.
            await self._sleep()
            return
        except Exception as error:
            # Told by the half that claims.
            log.debug("a claim failed: %r", error)
            await asyncio.sleep(BELL_S)
            return
        self._take(claimed, is_looking=is_looking)

    async def _asked(self, n: int, *, is_idle: bool) -> Claimed:
        try:
            return await self._consumer.claim(n, is_idle=is_idle, slots=self._slots)
        finally:
            self._has_looked.set()

    def _take(self, claimed: Claimed, *, is_looking: bool = False) -> None:
        # Fewer than asked for may be the limit in bytes, so there is more. None at all is none for now.
        self._remaining = claimed.remaining if claimed.grants or is_looking else 0
        self._note_suspects(claimed)
        self._dispatch(claimed.grants)

    def _note_suspects(self, claimed: Claimed) -> None:
        self._is_solo = claimed.solo
        self._look_at = time.monotonic() + SUSPECTS_LOOK_S
        if claimed.suspects == 0:
            self._suspects_since = None
        elif self._suspects_since is None:
            self._suspects_since = time.monotonic()
        if claimed.suspects and not self._used and not claimed.grants:
            self._remaining = 0

    def _dispatch(self, grants: Sequence[Grant]) -> None:
        if not grants:
            return
        self._leases.hold(grants)
        self._used += len(grants)
        items = [item for grant in grants if (item := self._decode(grant)) is not None]
        for batch in self._batcher.partition(items):
            task = asyncio.create_task(self._generator.run(batch), name=batch.id)
            self._batches.add(task)
            task.add_done_callback(self._batch_done)

    def _decode(self, grant: Grant) -> Item | None:
        deadline_at = time.monotonic() + grant.remaining_ms / 1000
        try:
            return Item(grant, codec.decode_req(grant.payload), deadline_at)
        except CodecError as error:
            log.error("the record of %s cannot be read: %s", grant.id, error)
            task = asyncio.create_task(self._refuse(grant, str(error)))
            self._batches.add(task)
            task.add_done_callback(self._batch_done)
            return None

    async def _refuse(self, grant: Grant, message: str) -> None:
        report = Report(finish_reason=FinishReason.error)
        try:
            await self._consumer.finish(grant, report, None, code="bad_record", message=message)
        finally:
            self._leases.drop(grant)
            self._on_free(1)

    def _batch_done(self, task: asyncio.Task[None]) -> None:
        self._batches.discard(task)
        if task.cancelled():
            return
        error = task.exception()
        if isinstance(error, EngineDead):
            self._give_up(error)
        elif error is not None:
            log.error("batch %s broke", task.get_name(), exc_info=error)

    def _give_up(self, error: EngineDead) -> None:
        self._dead = self._dead or error
        self._generator.is_stopping = True  # what comes only now is no suspect
        self._wake.set()

    def _on_free(self, n: int) -> None:
        self._used -= n
        if self._used == 0:
            self._is_solo = False
            if self._suspects_since is not None:
                self._remaining = max(self._remaining, 1)
        self._wake.set()

    # --- waking

    async def _sleep(self) -> None:
        await self._wake.wait()
        self._wake.clear()

    async def _listen(self) -> None:
        """The bell and this worker's abort list, on a connection of their own."""
        while True:
            if self._engine.failure is not None:
                # It died with nothing running, so that no batch could tell.
                self._give_up(self._engine.failure)
                return
            wants_work = self._can_take()
            try:
                # With no slot free only aborts are listened for, and not for long: one may come free.
                block_s = BELL_S if wants_work else FULL_S
                room = self._room() if wants_work else None
                news = await self._consumer.wait_for_work(block_s, wants_work=wants_work, room=room)
                if news.ended:
                    self._generator.stop(news.ended, Stop.LOST)
                if news.claimed is not None:
                    await self._take_from_the_bell(news.claimed)
                if news.ended or news.is_all:
                    continue
                if self._can_take():
                    self._has_looked.clear()
                    self._has_rung = True
                    self._wake.set()
                    # While that claim is under way none could wait at the bell.
                    await self._has_looked.wait()
                elif wants_work:
                    # The slots filled up while we waited: whoever is idle should hear it instead.
                    await self._consumer.ring()
                elif self._is_emptying():
                    self._wake.set()
            except BrokerUnavailable:
                log.debug("the bell could not be passed on; its time-out does it")
            except Exception:
                log.exception("waiting for work failed")
                await asyncio.sleep(BELL_S)

    def _room(self) -> Room:
        """What a claim may bring that waits for the bell: less is never free then, and more runs only after a claim,
        which makes this one void.
        """
        free = min(self._slots - self._used, self._claim_max)
        return Room(free, is_idle=self._used == 0, slots=self._slots)

    async def _take_from_the_bell(self, claimed: Claimed) -> None:
        if claimed.grants and self._leases.is_stalled:
            # Its engine stood still meanwhile, so others should have them.
            await self._consumer.release(claimed.grants)
            return
        self._take(claimed)
        if claimed.suspects and not self._used:
            # It was asked for while something ran, and suspects come to the idle alone.
            self._has_rung = True
        if self._may_claim():
            self._wake.set()
        # The batch goes first: it has come for the engine, and nobody waits for the next wait for the bell.
        await asyncio.sleep(0)

    def _on_beat(self, reply: BeatReply) -> None:
        if reply.lost:
            self._generator.stop(reply.lost, Stop.LOST)
        if reply.orphaned:
            log.warning("giving back %d grants that got lost on their way", len(reply.orphaned))
            task = asyncio.create_task(self._consumer.release_ids(reply.orphaned))
            self._batches.add(task)
            task.add_done_callback(self._batch_done)
        if reply.draining and not self._is_stopping:
            log.info("asked to drain")
            self.stop()

    # --- shutting down

    async def _shut_down(self) -> None:
        """Stop claiming; finish what runs within the grace; hand back the rest; then leave the queue."""
        self._state = WorkerState.DRAINING
        self._generator.is_stopping = True
        self._leases.beat_now()
        if self._dead is None:
            await self._wait_for_batches(self._stopped_at + self._drain_s)
            if self._used:
                log.warning("handing back %d requests that did not end in time", self._used)
                self._generator.stop_all(Stop.RELEASE)
                await self._wait_for_batches(time.monotonic() + ABORT_S)
        try:
            async with asyncio.timeout(LAST_WORDS_S):
                await self._generator.give_up(str(self._dead) if self._dead else None)
                await self._generator.settled()
                await self._leases.stop()
                await self._consumer.leave()
        except (TimeoutError, BrokerUnavailable) as error:
            log.warning("left without a word to the broker (%r); leases will tell", error)
            # Beats that go on would hold what was let go of here.
            await self._leases.stop()
        for task in self._batches:
            task.cancel()
        await asyncio.gather(*self._batches, return_exceptions=True)

    async def _wait_for_batches(self, until: float) -> None:
        """Until nothing runs, that time is over, or a second signal came."""
        while self._used > 0 and not self._is_hurried.is_set():
            left_s = until - time.monotonic()
            if left_s <= 0:
                return
            self._wake.clear()
            try:
                async with asyncio.timeout(left_s):
                    await self._wake.wait()
            except TimeoutError:
                continue
