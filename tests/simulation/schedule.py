"""What happens in a run: clients and faults, one step after the other, all drawn from the seed."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

import msgspec

from tests.simulation.ledger import Ask
from tests.simulation.oracle import Oracle
from tests.simulation.processes import FAIL, POISON, WEDGE, Api, Process
from tests.simulation.server import TURNED_AWAY
from tests.simulation.world import Plan, World, shard_of

CHECK_EVERY = 8
HOUR_MS = 3_600_000
# Of virtual time: a front door's reconcile of what it heard nothing of, and its tick.
WIPED_S = 6.0
CHILD_RATE = 0.4  # of looks at a list


def plan_of(seed: int, profile: str) -> Plan:
    chance = random.Random(seed + 3_000_017)
    if profile == "lists":
        return Plan(
            n_apis=1,
            n_workers=2,
            shards=1,
            slots=64,
            claim_max=64,
            token_s=chance.choice((0.0, 0.01, 0.05)),
            lease_s=chance.choice((2.0, 15.0)),
            drain_s=5.0,
            fault_rate=chance.choice((0.0, 0.01, 0.03)),
            slow_rate=chance.choice((0.0, 0.05)),
            slow_s=chance.choice((0.5, 2.0, 4.0)),
        )
    plan = Plan(
        n_apis=chance.randint(1, 3),
        n_workers=chance.randint(1, 3),
        shards=chance.choice((1, 1, 1, 2)),
        slots=chance.choice((2, 8, 64)),
        claim_max=chance.choice((1, 8, 64)),
        token_s=chance.choice((0.0, 0.02, 0.1)),
        lease_s=chance.choice((2.0, 4.0, 15.0)),
        drain_s=chance.choice((0.5, 3.0)),
        cap=chance.choice((0, 0, 12)),
        is_calm=profile == "calm",
    )
    if plan.is_calm:
        return plan
    return msgspec.structs.replace(
        plan,
        fault_rate=chance.choice((0.0, 0.01, 0.03, 0.1)),
        slow_rate=chance.choice((0.0, 0.02)),
        slow_s=chance.choice((0.3, 1.5, 4.0)),
    )


class Happenings:
    """`all` draws from everything, `calm` leaves out what breaks; `lists` sends long lists over a network that is bad
    to claims and results.
    """

    def __init__(self, steps: int, profile: str) -> None:
        self._steps = steps
        self._profile = profile
        self._count = 0
        self._quiet_until = 0.0
        self._is_undisturbed = True

    async def play(self, world: World, oracle: Oracle) -> None:
        plan, weather = world.plan, world.weather
        weather.fault_rate, weather.slow_rate = plan.fault_rate, plan.slow_rate
        weather.slow_s = plan.slow_s
        draws = self._draws(world)
        names, weights = [draw[0] for draw in draws], [draw[1] for draw in draws]
        for step in range(self._steps):
            act = world.chance.choices(names, weights)[0]
            act(world)
            await asyncio.sleep(world.chance.expovariate(1 / 0.3))
            if step % CHECK_EVERY == 0:
                oracle.check()

    def _draws(self, world: World) -> list[tuple[Callable[[World], None], float]]:
        if self._profile == "lists":
            for name in ("claim", "finish", "finish, several", "beat", "submit_many"):
                world.weather.worse[name] = world.plan.fault_rate * 2
                world.weather.slower[name] = world.plan.slow_rate * 2
            return [
                (self.big_list, 3), (self.rest, 3), (self.ask, 1), (self.cancel, 0.3), (self.leave, 0.3),
                (self.stop_broker, 0.3), (self.hold, 0.3), (self.kill_worker, 0.2), (self.drain_worker, 0.2),
                (self.start_worker, 0.4),
            ]  # fmt: skip
        draws: list[tuple[Callable[[World], None], float]] = [
            (self.ask, 10), (self.twins, 2), (self.list, 2), (self.big_list, 0.3), (self.call_back, 2),
            (self.attach, 3), (self.poll, 2), (self.cancel, 2), (self.leave, 2), (self.mismatch, 1),
            (self.stream, 3), (self.read, 2), (self.chain, 3), (self.rest, 2),
            (self.start_worker, 1), (self.drain_worker, 1), (self.close_api, 0.5), (self.start_api, 0.7),
            (self.forget_scripts, 0.5), (self.unblock, 0.5),
        ]  # fmt: skip
        if self._profile == "calm":
            return draws
        draws += [
            (self.kill_worker, 1), (self.hold, 1), (self.kill_api, 0.5), (self.poison, 0.25), (self.wedge, 0.1),
            (self.go_away, 0.5), (self.stop_broker, 0.7), (self.turn_away, 0.4), (self.fill_up, 0.4),
            (self.flush_all, 0.15), (self.step_clock, 0.2),
        ]  # fmt: skip
        return draws

    # --- clients

    def _new(self, world: World, *, n: int = 0, word: str = "", shard: int | None = None) -> Ask:
        self._count += 1
        chance = world.chance
        kind = word or (FAIL if chance.random() < 0.05 else "say")
        text = f"{kind} {self._count} " + "x" * chance.choice((0, 10, 60))
        place = chance.randrange(world.plan.shards) if shard is None else shard
        timeout_s = chance.choice((1.5, 4.0, 10.0, 20.0))
        ask = world.new_ask(f"r{self._count}", text, shard=place, n=n, timeout_s=timeout_s)
        ask.tenant = chance.choice(("t0", "t1"))
        return ask

    def _api(self, world: World) -> Api | None:
        apis = [api for api in world.open_apis if not api.host.is_held]
        return world.chance.choice(apis) if apis else None

    def _known(self, world: World) -> Ask | None:
        known = [a for a in world.ledger.asks.values() if a.accepted_at is not None]
        if not known:
            return None
        ask = world.chance.choice(known[-12:])
        if ask.n and world.chance.random() < CHILD_RATE:
            return world.ledger.child(ask, world.chance.randrange(ask.n))
        return ask

    def _send(self, world: World, ask: Ask, api: Api) -> None:
        chance = world.chance
        who = f"{api.name}/{self._count}"
        wait_s = self._wait_s(world) if ask.owns else 1000.0
        lane = chance.randrange(3)
        size = f" of {ask.n}" if ask.n else ""
        world.visit(api, world.clients.ask(api, ask, who, wait_s, lane), f"asks {ask.id}{size}")

    def _wait_s(self, world: World) -> float:
        """A third wait for less than the request may take: they cancel it then."""
        return world.chance.choice((1.0, 1000.0, 1000.0))

    def ask(self, world: World) -> None:
        if api := self._api(world):
            self._send(world, self._new(world), api)

    def poison(self, world: World) -> None:
        if api := self._api(world):
            self._send(world, self._new(world, word=POISON), api)

    def wedge(self, world: World) -> None:
        if api := self._api(world):
            self._send(world, self._new(world, word=WEDGE), api)

    def stream(self, world: World) -> None:
        """Asked for, and read as it grows."""
        if api := self._api(world):
            ask = self._new(world)
            ask.is_streamed = True
            self._send(world, ask, api)
            self._read(world, ask, api)

    def read(self, world: World) -> None:
        """Somebody else's."""
        if (api := self._api(world)) and (ask := self._known(world)) and not ask.n:
            self._read(world, ask, api)

    def _read(self, world: World, ask: Ask, api: Api) -> None:
        who = f"{api.name}/reader"
        coro = world.clients.read(api, ask, who, random.Random(world.chance.random()))
        world.visit(api, coro, f"reads {ask.id}")

    def chain(self, world: World) -> None:
        """One that depends on one or two before it, and repeats the answer of the first."""
        before = self._known(world)
        if (api := self._api(world)) and before is not None and not before.n:
            ask = self._new(world, shard=shard_of(before.id))
            ask.tenant = before.tenant
            ask.after = [before]
            second = self._known(world)
            if second is not None and _is_akin(second, before):
                ask.after.append(second)
            if world.chance.random() < 0.7:
                ask.text += f" {{{{{before.id}.text}}}}"
            self._send(world, ask, api)

    def twins(self, world: World) -> None:
        """The same id twice, from anywhere."""
        ask = self._new(world, n=world.chance.choice((0, 0, 3)))
        ask.owns = False
        for _ in range(2):
            if api := self._api(world):
                self._send(world, ask, api)

    def list(self, world: World) -> None:
        if api := self._api(world):
            self._send(world, self._new(world, n=world.chance.randint(1, 10)), api)

    def big_list(self, world: World) -> None:
        if api := self._api(world):
            self._send(world, self._new(world, n=world.chance.choice((92, 92, 130))), api)

    def call_back(self, world: World) -> None:
        if api := self._api(world):
            ask, lane = self._new(world), world.chance.randrange(3)
            who = f"{api.name}/callback"
            coro = world.clients.call_back(api, ask, who, lane)
            world.visit(api, coro, f"asks {ask.id} with a callback")

    def attach(self, world: World) -> None:
        if (api := self._api(world)) and (ask := self._known(world)):
            coro = world.clients.attach(api, ask, f"{api.name}/attached", 1000.0)
            world.visit(api, coro, f"attaches to {ask.id}")

    def poll(self, world: World) -> None:
        if (api := self._api(world)) and (ask := self._known(world)):
            coro = world.clients.poll(api, ask, f"{api.name}/poll")
            world.visit(api, coro, f"polls {ask.id}")

    def cancel(self, world: World) -> None:
        if (api := self._api(world)) and (ask := self._known(world)):
            coro = world.clients.cancel(api, ask, f"{api.name}/cancel")
            world.visit(api, coro, f"cancels {ask.id}")

    def mismatch(self, world: World) -> None:
        if (api := self._api(world)) and (ask := self._known(world)):
            coro = world.clients.mismatch(api, ask, f"{api.name}/mismatch")
            world.visit(api, coro, f"sends {ask.id} with another body")

    def leave(self, world: World) -> None:
        """A client goes: the task that serves it is cancelled, wherever it is."""
        there = [visit for visit in world.visiting if visit[2].startswith("asks")]
        if there:
            api, task, what = world.chance.choice(there)
            world.say(api.name, f"its client leaves: {what}")
            task.cancel()

    def rest(self, world: World) -> None:
        """Nothing, for a while."""

    # --- processes

    def kill_worker(self, world: World) -> None:
        if world.open_workers:
            world.kill(world.chance.choice(world.open_workers))

    def start_worker(self, world: World) -> None:
        if len(world.open_workers) < 4:
            world.start_worker()

    def drain_worker(self, world: World) -> None:
        there = [w for w in world.open_workers if not w.is_draining and not w.host.is_held]
        if there:
            worker = world.chance.choice(there)
            world.say(worker.name, "is asked to stop")
            worker.drain()

    def hold(self, world: World) -> None:
        there: list[Process] = [*world.open_apis, *world.open_workers]
        there = [p for p in there if not (p.host.is_held or p.host.is_loop_held)]
        if there:
            process, only_loop = world.chance.choice(there), world.chance.random() < 0.5
            seconds = world.chance.choice((0.5, 3.0, 8.0))
            world.say(process.name, f"{'its loop ' if only_loop else ''}stands for {seconds} s")
            process.hold(True, only_loop=only_loop)
            self._is_undisturbed = False

            def go_on() -> None:
                if process.is_up:
                    world.say(process.name, "goes on")
                    process.hold(False, only_loop=only_loop)

            world.loop.call_later(seconds, go_on)

    def kill_api(self, world: World) -> None:
        if len(world.open_apis) > 1:
            world.kill(world.chance.choice(world.open_apis))

    def close_api(self, world: World) -> None:
        if len(world.open_apis) > 1 and (api := self._api(world)):
            world.visit(api, api.close(), "closes")

    def start_api(self, world: World) -> None:
        if len(world.open_apis) < 3:
            world.start_api()

    # --- the broker

    def _for_a_while(
        self, world: World, what: str, begin: Callable[[], None], end: Callable[[], None]
    ) -> None:
        if world.loop.now < self._quiet_until:
            return
        seconds = world.chance.choice((0.3, 1.0, 3.0, 7.0))
        self._quiet_until = world.loop.now + seconds + 1.0
        self._is_undisturbed = False
        world.say("broker", f"{what} for {seconds} s")
        begin()
        world.loop.call_later(seconds, end)

    def go_away(self, world: World) -> None:
        def end() -> None:
            if world.server.is_away:
                world.server.come_back()

        self._for_a_while(world, "is away", world.server.go_away, end)

    def stop_broker(self, world: World) -> None:
        def end() -> None:
            if world.server.is_stopped:
                world.server.go_on()

        self._for_a_while(world, "stands", world.server.stop, end)

    def turn_away(self, world: World) -> None:
        server, how = world.server, world.chance.choice(sorted(TURNED_AWAY))

        def begin() -> None:
            server.turned_away = how

        def end() -> None:
            server.turned_away = None

        self._for_a_while(world, f"says {how}", begin, end)

    def fill_up(self, world: World) -> None:
        def begin() -> None:
            world.server.is_full = True

        def end() -> None:
            world.server.is_full = False

        self._for_a_while(world, "is full", begin, end)

    def forget_scripts(self, world: World) -> None:
        world.say("broker", "forgets its scripts")
        world.server.run_real([b"SCRIPT", b"FLUSH"])

    def unblock(self, world: World) -> None:
        world.server.unblock(world.chance)

    def step_clock(self, world: World) -> None:
        ms = world.chance.choice((-HOUR_MS, HOUR_MS))
        world.say("broker", f"its clock steps by {ms} ms")
        world.server.step_clock(ms)

    def flush_all(self, world: World) -> None:
        """What it held is gone: who waits is served all the same, or told soon, if nothing else is in the way."""
        world.say("broker", "is wiped")
        world.server.run_real([b"FLUSHALL"])
        world.ledger.flushed_at.append(world.loop.now)
        waiting = dict(world.clients.waiting)
        self._is_undisturbed = True

        def look() -> None:
            world.ledger.counts["wipes judged"] += self._is_undisturbed and bool(waiting)
            known = {
                number
                for number, (_, ask) in waiting.items()
                if world.shard_of(ask.id).state(ask.id) is not None
            }
            for number, (api, ask) in waiting.items():
                is_left = number in world.clients.waiting and api.is_up and number not in known
                if is_left and self._is_undisturbed:
                    world.ledger.fault(f"{api.name} waits for {ask.id} {WIPED_S} s after a wipe")

        if not world.weather.fault_rate and not world.weather.slow_rate:
            world.loop.call_later(WIPED_S, look)


def _is_akin(ask: Ask, other: Ask) -> bool:
    """Whether one request may depend on both."""
    places = {(a.tenant, shard_of(a.id), a.n) for a in (ask, other)}
    return ask is not other and len(places) == 1
