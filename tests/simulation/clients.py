"""What clients of a simulated front door do, as its routes do it for them. Each is a task in its process."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from functools import partial
from typing import Any

from shared.errors import (
    BrokerLost,
    BrokerUnavailable,
    Draining,
    IdempotencyMismatch,
    QueueFull,
    RefusedPredecessor,
    SluiceError,
)
from shared.queue.assembler import Reset
from shared.queue.snapshot import Caps
from shared.queue.streams import End
from shared.queue.waiters import Answer
from shared.request import Priority, Req
from shared.sampling import SamplingParams
from tests.simulation.ledger import Ask, Ledger
from tests.simulation.processes import Api

SAMPLING = SamplingParams(max_tokens=2000, min_tokens=0)
AGAIN_S = 0.5
HANG_UP_RATE = 0.1
Clock = Callable[[], float]


def req_of(ask: Ask, rid: str = "", text: str = "", *, priority: int) -> Req:
    return Req(
        id=rid or ask.id,
        sampling=SAMPLING,
        bucket_key=SAMPLING.bucket_key,
        digest=ask.digest,
        tenant=ask.tenant,
        prompt=text or ask.text,
        cost_tokens=5 + len(ask.text),
        priority=Priority(priority),
        timeout_s=ask.timeout_s,
        queue_timeout_s=ask.timeout_s,
        stream=ask.is_streamed,
        depends_on=tuple(before.id for before in ask.after),
    )


class Clients:
    def __init__(self, ledger: Ledger, clock: Clock, caps: Caps) -> None:
        self._ledger = ledger
        self._clock = clock
        self._caps = caps
        # Who waits for what by a number of the wait: front door and id.
        self.waiting: dict[int, tuple[Api, Ask]] = {}
        # What nobody waits for any more, and when its client went.
        self.left: dict[str, tuple[Api, float]] = {}
        self._count = 0

    async def ask(self, api: Api, ask: Ask, who: str, wait_s: float, lane: int) -> None:
        """Submit and wait, as POST /predict does; a wait that is over cancels, and so does leaving."""
        submit = partial(self._submit, api, ask, True, lane)
        if not await self._accepted(ask, submit):
            return
        try:
            answer = await self._wait(api, ask, who, wait_s)
        except (TimeoutError, asyncio.CancelledError) as error:
            if ask.owns:
                await self._give_up(api, ask, error)
            raise
        finally:
            api.producer.unwatch(ask.id)
        if answer is not None:
            await self._told(api, ask, who, answer)
        else:
            ask.is_lost = True

    async def _give_up(self, api: Api, ask: Ask, error: BaseException) -> None:
        if isinstance(error, asyncio.CancelledError):
            api.producer.cancel_later(ask.id, code="client_gone")
            self.left[ask.id] = (api, self._clock())
            ask.has_left = True
            return
        try:
            await api.producer.cancel(ask.id, code="wait_timeout")
        except BrokerUnavailable:
            api.producer.cancel_later(ask.id, code="wait_timeout")

    async def call_back(self, api: Api, ask: Ask, who: str, lane: int) -> None:
        """Submit with a callback and go."""

        def callback(answer: Answer | SluiceError) -> None:
            ask.callbacks[who] += 1
            if isinstance(answer, Answer):
                self._ledger.answered(ask, who, answer)
            elif not isinstance(answer, (Draining, BrokerLost)):
                self._ledger.fault(f"the callback of {ask.id} got {answer!r}")

        ask.callbacks[who] = 0
        submit = partial(self._submit, api, ask, False, lane, callback)
        is_accepted = False
        try:
            is_accepted = await self._accepted(ask, submit)
        finally:
            if not is_accepted:
                del ask.callbacks[who]

    async def attach(self, api: Api, ask: Ask, who: str, wait_s: float) -> None:
        """Watch somebody else's, as GET /requests/{id} with a wait does."""
        try:
            snapshot = await api.producer.attach(ask.id)
        except (BrokerUnavailable, Draining):
            return
        if snapshot is None:
            self._ledger.unknown(ask, who)
            return
        try:
            answer = await self._wait(api, ask, who, wait_s)
        finally:
            api.producer.unwatch(ask.id)
        if answer is not None:
            await self._told(api, ask, who, answer)

    async def read(self, api: Api, ask: Ask, who: str, chance: random.Random) -> None:
        """Read a text as it grows; now and then hang up, and go on from there."""
        text, place = "", (0, 0)
        while not api.has_closed:
            events = api.producer.stream(ask.id, place if place[0] else None)
            try:
                async for event in events:
                    if isinstance(event, End):
                        await self._told(api, ask, who, event.answer)
                        if event.answer.outcome.state == "F" and text != ask.answer:
                            self._ledger.fault(f"{who} read {text!r} of {ask.id}: {ask.answer!r}")
                        self._ledger.counts["streams read"] += 1
                        return
                    if isinstance(event, Reset):
                        text, place = "", (event.attempt, 0)
                        self._ledger.counts["streams reset"] += 1
                        continue
                    if event.offset != len(text) or (place[0] and event.attempt != place[0]):
                        self._ledger.fault(f"{who} got {event!r} of {ask.id} at {place}")
                    text += event.text
                    place = (event.attempt, len(text))
                    if chance.random() < HANG_UP_RATE:
                        break
            except BrokerLost:
                if ask.accepted_at is not None:
                    self._ledger.lost(ask, who)
                return
            except (BrokerUnavailable, Draining):
                pass
            finally:
                await events.aclose()
            await asyncio.sleep(AGAIN_S)

    async def poll(self, api: Api, ask: Ask, who: str) -> None:
        """Look until it has ended."""
        while not api.has_closed:
            try:
                snapshot = await api.producer.peek(ask.id)
                if snapshot is None:
                    self._ledger.unknown(ask, who)
                    return
                if snapshot.outcome is not None:
                    answer = await api.producer.answer(ask.id)
                    if answer is None:
                        self._ledger.unknown(ask, who)
                    else:
                        await self._told(api, ask, who, answer)
                    return
            except (BrokerUnavailable, Draining):
                pass
            await asyncio.sleep(AGAIN_S)

    async def cancel(self, api: Api, ask: Ask, who: str) -> None:
        try:
            snapshot = await api.producer.cancel(ask.id)
        except BrokerUnavailable:
            return
        if snapshot is None:
            self._ledger.unknown(ask, who)
        elif snapshot.outcome is not None:
            self._ledger.ended(ask, who, snapshot.outcome)
        elif not self._ledger.may_be_wiped(ask):
            self._ledger.fault(f"{ask.id} was cancelled by {who} and lives on")

    async def mismatch(self, api: Api, ask: Ask, who: str) -> None:
        """Another body under a known id."""
        other = Ask(ask.id, ask.text, timeout_s=ask.timeout_s, at=ask.made_at)
        other.tenant = ask.tenant
        other.digest = "another"
        was_known = ask.accepted_at is not None
        try:
            req = req_of(other, priority=1)
            await api.producer.submit(req, self._caps, owns_id=False)
        except (BrokerUnavailable, Draining, QueueFull, IdempotencyMismatch):
            return
        if was_known and not self._ledger.may_be_wiped(ask):
            self._ledger.fault(f"{ask.id} was taken again with another body ({who})")

    # --- parts

    async def _submit(
        self,
        api: Api,
        ask: Ask,
        watch: bool,
        lane: int,
        callback: Callable[[Answer | SluiceError], None] | None = None,
    ) -> None:
        head = req_of(ask, priority=lane)
        options: dict[str, Any] = {"watch": watch, "owns_id": ask.owns, "callback": callback}
        # As POST /predict: nobody else can wait for it, so it goes with its front door.
        options["held"] = ask.owns and watch
        if not ask.n:
            await api.producer.submit(head, self._caps, **options)
            return
        children = [
            req_of(ask, f"{ask.id}.{i}", ask.text_of(i), priority=lane) for i in range(ask.n)
        ]
        await api.producer.submit_list(head, children, self._caps, **options)

    async def _accepted(self, ask: Ask, submit: Callable[[], object]) -> bool:
        """A client with a key of its own sends again what was refused for a passing reason."""
        for _ in range(1 if ask.owns else 4):
            try:
                await submit()  # type: ignore[misc]
            except (BrokerUnavailable, Draining, QueueFull) as error:
                self._ledger.counts[error.code] += 1
                await asyncio.sleep(AGAIN_S)
                continue
            except RefusedPredecessor as error:
                if not any(map(self._ledger.may_be_wiped, [ask, *ask.after])):
                    self._ledger.fault(f"{ask.id} was refused a predecessor: {error}")
                return False
            except IdempotencyMismatch:
                if not self._ledger.may_be_wiped(ask):
                    self._ledger.fault(f"{ask.id} was refused as another body's")
                return False
            self._ledger.accepted(ask, self._clock())
            return True
        return False

    async def _wait(self, api: Api, ask: Ask, who: str, wait_s: float) -> Answer | None:
        self._count += 1
        number = self._count
        self.waiting[number] = (api, ask)
        try:
            return await api.producer.wait(ask.id, wait_s)
        except (BrokerLost, Draining) as error:
            if isinstance(error, BrokerLost):
                self._ledger.lost(ask, who)
            self._ledger.counts[error.code] += 1
            return None
        finally:
            del self.waiting[number]

    async def _told(self, api: Api, ask: Ask, who: str, answer: Answer) -> None:
        self._ledger.answered(ask, who, answer)
        if not ask.n:
            return
        rids = [f"{ask.id}.{i}" for i in range(ask.n)]
        while not api.has_closed:
            try:
                answers = await api.producer.answers(rids)
            except (BrokerUnavailable, Draining):
                await asyncio.sleep(AGAIN_S)
                continue
            self._ledger.children(ask, who, answers)
            return
