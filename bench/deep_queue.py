"""A queue that is kept deep while everything is done to it that front doors and workers do, by their own two halves.

Sizes, lanes and tenants are mixed and always the same. Measures nothing.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence

import msgspec

from bench.answering import INFO, REPORT, answer, claim
from bench.load import closed_loop
from bench.noop import no_op
from shared.queue.claiming import Grant
from shared.queue.consumer import Consumer
from shared.queue.producer import Producer
from shared.queue.snapshot import Caps
from shared.request import Body, Priority, Req

IN_FLIGHT = 64
LIFE_S = 3_000.0
KIB = 1024
# Characters of a prompt up to which, and how many of a hundred: 3 KiB on average.
SIZES = ((KIB, 70), (8 * KIB, 25), (64 * KIB, 5))
TENANTS = 20
LIST = 64
HELD = 256  # as many as a worker with the simulated engine has slots for
SEED = 4


class DeepQueue:
    """`fill` once, then `work` round by round; each round leaves the queue as deep as it was."""

    def __init__(self, producer: Producer, consumer: Consumer) -> None:
        self._producer = producer
        self._consumer = consumer
        self._mixed = random.Random(SEED)
        self._some: list[str] = []  # ids, for looks and cancels

    # --- putting in

    def request(self, *, life_s: float = LIFE_S, depends_on: Sequence[str] = ()) -> Req:
        rid = self._producer.new_id()
        size = self._mixed.choices([s for s, _ in SIZES], [share for _, share in SIZES])[0]
        self._some.append(rid)
        return msgspec.structs.replace(
            no_op(rid, life_s=life_s),
            prompt="x" * self._mixed.randint(size // 8, size),
            tenant=f"tenant-{self._mixed.randrange(TENANTS)}",
            priority=self._mixed.choice(list(Priority)),
            cost_tokens=self._mixed.randint(1, 4_000),
            depends_on=tuple(depends_on),
        )

    async def submit(self, n: int, *, life_s: float = LIFE_S) -> None:
        async def one(_: int) -> None:
            await self._producer.submit(self.request(life_s=life_s), Caps())

        await closed_loop(range(n), IN_FLIGHT, one)

    async def submit_list(self) -> str:
        parent = self.request()
        children = [
            msgspec.structs.replace(self.request(), id=f"{parent.id}.{i}", tenant=parent.tenant)
            for i in range(LIST)
        ]
        await self._producer.submit_list(parent, children, Caps())
        return parent.id

    async def submit_chain(self, before: Sequence[str]) -> None:
        """One that waits for these."""
        tenant = "tenant-0"
        after = msgspec.structs.replace(self.request(depends_on=before), tenant=tenant)
        await self._producer.submit(after, Caps())

    # --- what is done to it

    async def finish_some(self, n: int) -> int:
        """Claimed, told in the beat, streamed in part, finished with answers of every size. Returns how many."""
        grants: list[Grant] = []
        while len(grants) < n and (more := await claim(self._consumer)):
            grants += more
        self._beat(grants)
        for grant in grants[::16]:
            self._consumer.emit(self._consumer.emission(grant), self.text())
        while self._consumer.has_unsent:
            await self._consumer.flush()
        long = grants[::16]
        short = [grant for place, grant in enumerate(grants) if place % 16]
        await answer(self._consumer, short)
        await asyncio.gather(
            *(self._consumer.finish(grant, REPORT, Body(text=self.text())) for grant in long)
        )
        return len(grants)

    def text(self) -> str:
        return "y" * self._mixed.randint(1, 64 * KIB)

    def _beat(self, grants: Sequence[Grant]) -> None:
        self._consumer.beat({grant.id: (grant.token, True) for grant in grants}, INFO)

    async def give_back_some(self) -> None:
        """In each of the three ways."""
        grants = await claim(self._consumer)
        third = len(grants) // 3
        await self._consumer.release(grants[:third])
        for grant in grants[third : 2 * third]:
            await self._consumer.retry(grant, "the engine aborted it")
        await self._consumer.suspect(grants[2 * third :], "the engine died")

    async def lose_some(self) -> None:
        """Claimed by a worker that is not heard of again: their leases end."""
        held = 0
        while held < HELD and (grants := await claim(self._consumer)):
            held += len(grants)

    async def cancel_running(self) -> None:
        grants = await claim(self._consumer, 8)
        self._beat(grants)
        for grant in grants:
            await self._producer.cancel(grant.id)
            await self._consumer.settle(grant, REPORT)

    async def look_and_cancel(self) -> None:
        """A poll, a wait, an answer that is taken away, for some; cancels for others."""
        some = self._mixed.sample(self._some, 32)
        for rid in some[:16]:
            await self._producer.peek(rid)
            if await self._producer.attach(rid) is not None:
                self._producer.unwatch(rid)
        for rid in some[16:]:
            await self._producer.cancel(rid)
            await self._producer.drop(rid)

    async def round(self, number: int) -> None:
        ended = await self.finish_some(HELD)
        await self.submit(ended)
        await self.look_and_cancel()
        if number % 4 == 0:
            await self.give_back_some()
            await self.cancel_running()
            parent = await self.submit_list()
            if number % 8 == 0:
                await self._producer.cancel(parent)
        if number % 4 == 1:
            own = [msgspec.structs.replace(self.request(), tenant="tenant-0") for _ in range(16)]
            for req in own:
                await self._producer.submit(req, Caps())
            await self.submit_chain([req.id for req in own])
            await self._producer.set_system_prompt(self.text(), "bench")
        if number % 8 == 2:
            await self.lose_some()
            await self.submit(HELD, life_s=1.0)  # they expire where they stand
        self._some = self._some[-10_000:]
