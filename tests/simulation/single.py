"""Runs in which one kind of fault happens and there is time for everything, so that every request must be answered.

`wipe`: the broker is emptied. `claims`: for a while no reply to a claim comes back. `late`: the broker is emptied, and
a copy of a claim that its worker has long had the answer to arrives then, so that grants go to nobody. `leave`: clients
go while their requests run for seconds.
"""

from __future__ import annotations

import asyncio
import random

from tests.simulation.ledger import Ask
from tests.simulation.oracle import Oracle
from tests.simulation.processes import FAIL, SAY_S
from tests.simulation.schedule import Happenings
from tests.simulation.world import Plan, World

PROFILES = ("wipe", "claims", "late", "leave")
TIMEOUT_S, LEASE_S = 20.0, 30.0  # so that no lease that runs out saves anything
BUSY = 4  # requests that are under way when it happens
STEP_S = 0.2
SLOW_S = 0.3  # a token
UNHEARD_S = 4.0  # longer than a call waits for the broker
HELD_S = 5.0
RESUBMITTED_S = 1.5  # after a wipe
ROUND_S = 7.0


def plan_of(seed: int, profile: str) -> Plan:
    chance = random.Random(seed + 4_000_037)
    return Plan(
        n_apis=chance.randint(1, 2),
        n_workers=1 if profile == "late" else chance.randint(1, 2),
        shards=1,
        slots=8,
        claim_max=chance.choice((1, 8)),
        token_s=SLOW_S if profile == "leave" else chance.choice((0.02, 0.1)),
        lease_s=LEASE_S,
        drain_s=3.0,
        is_calm=profile == "leave",
        is_ample=True,
    )


class SingleFault(Happenings):
    """`steps` are requests before and after each of two times that it happens."""

    async def play(self, world: World, oracle: Oracle) -> None:
        fault = {
            "wipe": self.wipe,
            "claims": self.lose_claims,
            "late": self.late_claim,
            "leave": self.let_go,
        }
        acts = (
            self.ask,
            self.ask,
            self.ask,
            self.stream,
            self.list,
            self.call_back,
            self.chain,
            self.attach,
        )
        for _ in range(2):
            for _ in range(self._steps):
                world.chance.choice(acts)(world)
                await asyncio.sleep(world.chance.expovariate(1 / STEP_S))
            await fault[self._profile](world)
            for _ in range(self._steps):
                await asyncio.sleep(ROUND_S / self._steps)
                world.chance.choice(acts)(world)
            oracle.check()

    def _new(self, world: World, *, n: int = 0, word: str = "", shard: int | None = None) -> Ask:
        self._count += 1
        kind = FAIL if world.chance.random() < 0.05 else "say"
        text = f"{kind} {self._count} " + "x" * world.chance.choice((0, 10, 60))
        return world.new_ask(f"r{self._count}", text, n=n, timeout_s=TIMEOUT_S)

    def _wait_s(self, world: World) -> float:
        return 1000.0

    async def _be_busy(self, world: World) -> None:
        for _ in range(BUSY):
            self.ask(world)
        await asyncio.sleep(STEP_S * (0.1 + world.chance.random()))

    async def _say_something(self, world: World) -> None:
        """Until one that is read as it grows has said its first words, which are taken back later."""
        self.stream(world)
        ask, until = list(world.ledger.asks.values())[-1], world.loop.now + TIMEOUT_S
        shard = world.shard_of(ask.id)
        while not (shard.part(ask.id) or ask.endings) and world.loop.now < until:
            await asyncio.sleep(SAY_S)

    async def wipe(self, world: World) -> None:
        await self._say_something(world)
        self.list(world)  # nobody can make that again, so its caller is told
        await self._be_busy(world)
        self.flush_all(world)

    async def let_go(self, world: World) -> None:
        await self._be_busy(world)
        for _ in range(BUSY):
            self.leave(world)

    async def lose_claims(self, world: World) -> None:
        world.say("broker", f"no claim is answered for {UNHEARD_S} s")
        world.weather.unheard.add("claim")
        world.loop.call_later(UNHEARD_S, world.weather.unheard.discard, "claim")
        await self._be_busy(world)

    async def late_claim(self, world: World) -> None:
        worker, until = world.open_workers[0], world.loop.now + TIMEOUT_S
        while worker.work.info().running and world.loop.now < until:
            await asyncio.sleep(STEP_S)
        name = worker.consumer.name.encode()
        claims = [claim for (_, by), claim in world.server.claims.items() if by == name]
        # What is asked now stays in the queue, but for what the claim at the bell brings, and beats go on.
        worker.hold(True, only_loop=True)
        await self._be_busy(world)
        self.flush_all(world)
        for claim in claims:
            world.loop.call_later(RESUBMITTED_S, world.server.run_late, claim)
        world.loop.call_later(HELD_S, lambda: worker.hold(False, only_loop=True))
