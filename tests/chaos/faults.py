"""What goes wrong, when, by seed; each is counted once it has struck. Knows the stack and nothing of the clients.

A FLUSHALL and a full broker have phases of their own: no other fault is under way then, so that what they cost can
be told. All others overlap, and each kind strikes at least once, however short the run.
"""

from __future__ import annotations

import asyncio
import math
import random
import re
import signal
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from redis.exceptions import RedisError

from shared.queue.loader import load
from tests.chaos.history import History, Strike, Wipe
from tests.chaos.oracle import RECONCILED_S
from tests.chaos.parts import Part
from tests.chaos.proxy import Proxy
from tests.chaos.stack import Stack

GAP_S = (0.1, 0.8)
AT_ONCE = 3
CALM_S = 1.0  # around a phase
FULL_LIMIT_S = 4.0
# After 1.2 s without a reply a process takes a connection for dead, and tries again on another.
MIDWAY_S, MIDWAY_TRIES = 1.0, 4
# Of the broker: so short that no lease of 2 s ends, or so long that the queue clock leaves it out and gives a grace.
SHORT_STOP_S, LONG_STOP_S = (0.2, 0.9), (6.5, 8.0)

Kind = Callable[[], Coroutine[Any, Any, None]]
# Brings a long list to the front door of this number.
LongList = Callable[[int], Coroutine[Any, Any, None]]


class Faults:
    def __init__(
        self,
        stack: Stack,
        history: History,
        rng: random.Random,
        now: Callable[[], float],
        long_list: LongList,
    ) -> None:
        self._stack = stack
        self._long_list = long_list
        self._history = history
        self._rng = rng
        self._now = now
        self._until = self._spared_until = self._doors_until = 0.0
        self._striking: set[asyncio.Task[None]] = set()
        # How often each comes in one round; the order of a round is the seed's.
        self._kinds: dict[Kind, int] = {
            self.kill_worker: 3,
            self.stop_worker: 2,
            self.drain_worker: 1,
            self.kill_door: 1,
            self.stop_door: 1,
            self.drain_door: 1,
            self.kill_midway: 2,
            self.kill_broker: 2,
            self.stop_broker: 1,
            self.flush_scripts: 1,
            self.kill_clients: 1,
            self.cut: 1,
            self.cut_after: 2,
            self.stall: 2,
            self.swallow: 2,
        }

    async def run(self, until: float, doors_until: float) -> None:
        """Until the first time, or until each kind has struck; no front door is ended after the second.

        The flush comes early, since what it wipes cannot be judged any more. After it one front door is spared, and
        the broker is not stopped for long, until those who wait there must have learnt what is lost.
        """
        self._doors_until = doors_until
        left_s = until - self._now()
        await self._strike_until(until - left_s * 7 / 8)
        await self._phase(self._flush_all)
        self._spared_until = self._now() + RECONCILED_S
        await self._strike_until(max(until - left_s * 2 / 5, min(until, self._spared_until)))
        await self._phase(self._fill_memory)
        await self._strike_until(until, is_last=True)

    async def _strike_until(self, until: float, *, is_last: bool = False) -> None:
        self._until = until
        bag: list[Kind] = []
        try:
            while self._now() < until or (is_last and self._owed()):
                if len(self._striking) < AT_ONCE:
                    task = asyncio.create_task(self._next(bag)())
                    self._striking.add(task)
                    task.add_done_callback(self._striking.discard)
                await asyncio.sleep(self._rng.uniform(*GAP_S))
        except asyncio.CancelledError:
            for task in self._striking:
                task.cancel()
            raise
        finally:
            await self._calm()

    def _owed(self) -> list[Kind]:
        """Those that have not struck yet: some find nothing to strike at their first try."""
        struck = self._history.faults
        return [kind for kind in self._kinds if kind.__name__ not in struck]

    def _next(self, bag: list[Kind]) -> Kind:
        if owed := self._owed():
            return self._rng.choice(owed)
        if not bag:
            bag += [kind for kind, n in self._kinds.items() for _ in range(n)]
            self._rng.shuffle(bag)
        return bag.pop()

    async def _calm(self) -> None:
        """Nothing is left stopped, stalled or half cut."""
        await asyncio.gather(*self._striking)
        for proxy in self._stack.proxies.values():
            proxy.resume()
            proxy.cut()

    async def _phase(self, strike: Callable[[], Awaitable[None]]) -> None:
        await self._stack.until_all_serve()
        await strike()
        await asyncio.sleep(CALM_S)

    def _span(self, low: float, high: float) -> float:
        """Seconds for a fault that lasts; none lasts longer than its stretch of the run."""
        return max(0.1, min(self._rng.uniform(low, high), self._until - self._now()))

    # --- processes

    async def kill_worker(self) -> None:
        self._signal("kill_worker", self._worker(), signal.SIGKILL)

    async def drain_worker(self) -> None:
        self._signal("drain_worker", self._worker(), signal.SIGTERM)

    async def stop_worker(self) -> None:
        """For less than a lease, or for more."""
        await self._pause("stop_worker", self._worker(), self._span(0.5, 5.0))

    async def kill_door(self) -> None:
        self._end_door("kill_door", signal.SIGKILL)

    async def drain_door(self) -> None:
        self._end_door("drain_door", signal.SIGTERM)

    async def kill_midway(self) -> None:
        """A front door that is bringing a long list: once the list is there, and items of it are not yet.

        Not before the flush, which would take the list along.
        """
        door, number = self._stack.doors[-1], len(self._stack.doors) - 1
        if not (self._history.wipes and self._may_end_door("kill_midway") and door.is_running):
            return
        proxy = self._stack.proxies[door.name]
        asking = asyncio.create_task(self._long_list(number))
        try:
            half_there = await self._until_midway(proxy, asking)
            if half_there is not None:
                self._signal("kill_midway", door, signal.SIGKILL, half_there)
        finally:
            proxy.resume()
            await asyncio.gather(asking, return_exceptions=True)

    async def _until_midway(self, proxy: Proxy, asking: asyncio.Task[None]) -> str | None:
        """Holds back what the door says after it has made room for a list, or brought some of its items. Returns the
        list, None where it was not to be caught: another fault has the door or the broker.
        """
        script = load(self._rng.choice(("reserve", "submit_many")))
        for _ in range(MIDWAY_TRIES):
            passed = proxy.stall_at(script.sha.encode())
            either: set[asyncio.Future[Any]] = {passed, asking}
            await asyncio.wait(either, timeout=MIDWAY_S, return_when=asyncio.FIRST_COMPLETED)
            if not passed.done():
                passed.cancel()
                return None
            named = re.search(rb"}:grp:(\S+)", passed.result())
            try:
                if named and await self._is_half_there(parent := named[1].decode()):
                    return f"{parent} after {script.name}"
            except (RedisError, OSError):
                return None
            proxy.resume()
        return None

    async def _is_half_there(self, parent: str) -> bool:
        """The broker may be just about to do what it was told; a list that is short is there whole by then."""
        for _ in range(10):
            await asyncio.sleep(0.02)
            if await self._stack.store.is_half_there(parent):
                return True
        return False

    async def stop_door(self) -> None:
        """Not one that is leaving: what is stopped for its whole grace cannot tell its callers any more."""
        door = self._door()
        if not door.is_leaving:
            await self._pause("stop_door", door, self._span(0.3, 3.0))

    async def kill_broker(self) -> None:
        self._signal("kill_broker", self._stack.broker, signal.SIGKILL)

    async def stop_broker(self) -> None:
        now = self._now()
        is_long = self._spared_until < now and now + LONG_STOP_S[1] < self._until
        is_long = is_long and self._rng.random() < 0.5
        seconds = self._rng.uniform(*(LONG_STOP_S if is_long else SHORT_STOP_S))
        await self._pause("stop_broker", self._stack.broker, seconds)

    def _signal(self, kind: str, part: Part, number: signal.Signals, detail: str = "") -> None:
        if part.send(number):
            self._struck(kind, part.name, detail=detail)

    def _end_door(self, kind: str, number: signal.Signals) -> None:
        if self._may_end_door(kind):
            self._signal(kind, self._door(), number)

    def _may_end_door(self, kind: str) -> bool:
        """What it leaves half there ends after 30 s; near the end of a long run nobody would see that."""
        return self._now() < self._doors_until or not self._history.faults[kind]

    def _struck(self, kind: str, name: str = "", seconds: float = 0.0, detail: str = "") -> None:
        self._history.strike(Strike(self._now(), kind, name, seconds), detail)

    async def _pause(self, kind: str, part: Part, seconds: float) -> None:
        if part.send(signal.SIGSTOP):
            self._struck(kind, part.name, seconds)
            try:
                await asyncio.sleep(seconds)
            finally:
                part.send(signal.SIGCONT)

    def _worker(self) -> Part:
        return self._rng.choice(self._stack.workers)

    def _door(self) -> Part:
        is_spared = self._now() < self._spared_until
        return self._rng.choice(self._stack.doors[is_spared:])

    # --- the broker from inside

    async def flush_scripts(self) -> None:
        await self._ask("flush_scripts", self._stack.store.flush_scripts)

    async def kill_clients(self) -> None:
        await self._ask("kill_clients", self._stack.store.kill_clients)

    async def _ask(self, kind: str, command: Callable[[], Awaitable[object]]) -> None:
        try:
            await command()
        except (RedisError, OSError):
            return  # another fault has the broker
        self._struck(kind, "broker")

    async def _flush_all(self) -> None:
        began = self._now()
        # It counts from its beginning on: clients may be told of it before its own reply is here.
        self._history.wipes.append(Wipe(began, math.inf))
        await self._stack.store.flush_all()
        self._history.wipes[-1] = Wipe(began, self._now())
        self._history.strike(Strike(began, "flush_all", "broker"))

    async def _fill_memory(self) -> None:
        """No room for anything: submits are refused, and what runs ends."""
        store, history = self._stack.store, self._history
        before = await store.live()
        await store.limit_memory(1)
        self._struck("fill_memory", "broker")
        history.full_since = self._now()
        try:
            while await store.live() and self._now() < history.full_since + FULL_LIMIT_S:
                await asyncio.sleep(0.1)
            await asyncio.sleep(CALM_S)
            history.note(self._now(), f"memory: {before} lived, {await store.live()} at its end")
        finally:
            history.full_since = None
            await store.limit_memory(0)

    # --- the connections

    async def cut(self) -> None:
        name, proxy = self._proxy()
        if proxy.cut():
            self._struck("cut", name)

    async def cut_after(self) -> None:
        """In the middle of a command or of a reply."""
        name, proxy = self._proxy()
        n_bytes, replies = self._rng.randint(1, 3_000), self._rng.random() < 0.5
        if proxy.cut_after(n_bytes, replies=replies):
            what = "replies" if replies else "commands"
            self._struck("cut_after", name, detail=f"{n_bytes} bytes of {what}")

    async def stall(self) -> None:
        name, proxy = self._proxy()
        seconds = self._span(0.3, 4.0)
        proxy.stall()
        self._struck("stall", name, seconds)
        try:
            await asyncio.sleep(seconds)
        finally:
            proxy.resume()

    async def swallow(self) -> None:
        """The broker does what it is told, and nobody hears of it."""
        name, proxy = self._proxy()
        seconds = self._span(0.2, 3.0)
        if proxy.swallow():
            self._struck("swallow", name, seconds)
            await asyncio.sleep(seconds)
            proxy.cut()

    def _proxy(self) -> tuple[str, Proxy]:
        return self._rng.choice(list(self._stack.proxies.items()))
