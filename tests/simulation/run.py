"""One run from an empty broker to its verdict: the schedule, then calm, until all has ended as it must."""

from __future__ import annotations

import asyncio
import importlib.metadata
import logging
import random
import secrets
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from typing import Protocol
from unittest import mock

import msgspec

from shared.errors import BrokerUnavailable
from shared.queue import claiming
from tests.simulation import threads
from tests.simulation.loop import Stuck
from tests.simulation.oracle import Oracle
from tests.simulation.server import START_MS
from tests.simulation.watch import Watch
from tests.simulation.world import Plan, World
from worker import leases

# Errors in the log that a schedule asks for: an engine that dies, or wedges.
EXPECTED = ("the engine died under batch", "the engine makes no progress")
# After faults are over and every deadline has passed: the worker's grace, a sweep that comes back, a reconcile.
SLACK_S = 20.0
# A list whose front door died half-way is ended 30 s later.
IDLE_S = 60.0
PROBE_S = 1.5
STOP_S = 30.0


class Verdict(msgspec.Struct):
    """`broken` is empty where nothing was found wrong. `counts` are what clients were told, by code or state,
    and what else came about."""

    seed: int
    broken: list[str]
    trace: list[str]
    counts: dict[str, int]
    commands: int
    faults: int
    virtual_s: float


class Schedule(Protocol):
    async def play(self, world: World, oracle: Oracle) -> None:
        """Let things happen, until it is enough."""
        ...


class Run:
    def __init__(self, world: World) -> None:
        self._world = world
        self._oracle = Oracle(world)
        self._fault = world.ledger.fault

    async def play(self, schedule: Schedule) -> None:
        world = self._world
        for _ in range(world.plan.n_apis):
            world.start_api()
        for _ in range(world.plan.n_workers):
            world.start_worker()
        background = [asyncio.create_task(world.supervise())]
        watch = Watch(world)
        if world.plan.is_calm:
            background.append(asyncio.create_task(watch.run()))
        await asyncio.sleep(0.1)
        await schedule.play(world, self._oracle)
        world.calm()
        await self._settle()
        await self._probe()
        for task in background:
            task.cancel()
        self._oracle.judge_idle()
        await self._close()
        if world.plan.is_calm:
            watch.look_at_left()
        self._oracle.judge_closed()
        self._oracle.judge()

    async def _settle(self) -> None:
        """Everything ends by itself now: callers are answered, the store empties."""
        world, loop = self._world, self._world.loop
        # What is still under way of what nobody waits for.
        await asyncio.sleep(world.net.busy_until - loop.now + 0.1)
        dues = [ask.made_at + ask.timeout_s for ask in world.ledger.asks.values()]
        until = max([loop.now, *dues]) + SLACK_S
        while loop.now < until and world.visiting:
            world.keep_a_worker()
            await asyncio.sleep(0.5)
        for api, _, what in world.visiting:
            self._fault(f"{api.name}: {what}: still waits {SLACK_S:g} s after all was due")
        until = loop.now + IDLE_S
        while loop.now < until and self._is_busy():
            world.keep_a_worker()
            await asyncio.sleep(0.5)

    def _is_busy(self) -> bool:
        world = self._world
        fixed = [s.keys.fixed(name) for s in world.shards for name in ("live", "resv")]
        is_stalled = any(worker.is_stalled for worker in world.open_workers)
        return is_stalled or bool(world.client.exists(*fixed))

    async def _probe(self) -> None:
        """The service is well again: what is asked now is answered at once."""
        world = self._world
        world.keep_a_worker()
        if not world.open_apis:
            world.start_api()
        if not world.plan.is_ample:
            # What is in nobody's hands comes back.
            await asyncio.sleep(world.plan.lease_s)
        api = world.open_apis[-1]
        for number in range(3):
            ask = world.new_ask(f"probe{number}", "probe", timeout_s=30)
            began = world.loop.now
            asking = world.clients.ask(api, ask, "probe", 60, 1)
            task = world.visit(api, asking, f"asks {ask.id}")
            await asyncio.wait([task], timeout=40)
            took_s = world.loop.now - began - 5 * world.plan.token_s
            if not ask.endings or ask.endings[0][1][0] != "F" or took_s > PROBE_S:
                self._fault(f"a probe took {took_s:.2f} s and ended as {ask.endings}")

    async def _close(self) -> None:
        world = self._world
        for worker in world.open_workers:
            worker.drain()
        for worker in [worker for worker in world.workers if worker.is_up]:
            await asyncio.wait([worker.task], timeout=STOP_S)
            if not worker.task.done():
                # A wedged engine ends with its process.
                if worker.is_up:
                    self._fault(f"{worker.name} does not stop")
            elif (error := worker.task.exception()) is not None:
                self._fault(f"{worker.name} broke: {error!r}")
        for api in world.open_apis:
            await asyncio.wait([api.spawn(api.close())], timeout=STOP_S)
        await asyncio.sleep(2)


class _Log(logging.Handler):
    """Whatever the product logs as an error is one, unless the schedule asked for it."""

    def __init__(self, world: World) -> None:
        super().__init__(logging.WARNING)
        self._world = world
        self.is_over = False

    def emit(self, record: logging.LogRecord) -> None:
        if self.is_over:
            return
        error = record.exc_info[1] if record.exc_info else None
        message = record.getMessage() + (f" [{error!r} {error}]" if error else "")
        self._world.say("log", f"{record.name} {record.levelname}: {message}")
        # Of a worker that could not say goodbye: its lease tells.
        is_goodbye = "could not be stored" in message and isinstance(error, BrokerUnavailable)
        if record.levelno >= logging.ERROR and not (message.startswith(EXPECTED) or is_goodbye):
            self._world.ledger.fault(f"logged: {message}")


@contextmanager
def _patched(world: World, seed: int) -> Iterator[None]:
    """The product's clock, threads and chance are the simulation's."""
    names = random.Random(seed + 2_000_003)
    state = random.getstate()
    random.seed(seed)

    def wall_s() -> float:
        return START_MS / 1000 + world.loop.now

    def token_hex(n: int = 8) -> str:
        return f"{names.getrandbits(8 * n):0{2 * n}x}"

    with ExitStack() as stack:
        for where, name, what in (
            (time, "monotonic", world.loop.time),
            (time, "time", wall_s),
            (leases, "threading", threads),
            (secrets, "token_hex", token_hex),
            # redis-py reads its own version from disk for every connection.
            (importlib.metadata, "version", cache(importlib.metadata.version)),
        ):
            stack.enter_context(mock.patch.object(where, name, what))
        if world.plan.is_ample:
            # There no lease that runs out may save anything.
            lease_ms = int(world.plan.lease_s * 1000)
            stack.enter_context(mock.patch.object(claiming, "AHEAD_LEASE_MS", lease_ms))
        yield
    random.setstate(state)


def simulate(socket_path: str, seed: int, plan: Plan, schedule: Schedule) -> Verdict:
    """One run on a server that must be nobody else's: it is wiped first."""
    world = World(socket_path, seed, plan)
    loop, log = world.loop, _Log(world)
    loop.set_exception_handler(
        lambda _, context: world.ledger.fault(
            f"unhandled: {context.get('message')} {context.get('exception')!r}"
        )
    )
    root = logging.getLogger()
    root.addHandler(log)
    try:
        with _patched(world, seed):
            try:
                loop.run_until_complete(Run(world).play(schedule))
            except Stuck as error:
                world.ledger.fault(f"stuck: {error}")
            finally:
                log.is_over = True
                verdict = Verdict(
                    seed,
                    list(world.ledger.broken),
                    list(world.trace),
                    dict(world.counts),
                    world.server.commands,
                    world.net.faults,
                    loop.age_s,
                )
                world.calm()
                loop.run_until_complete(world.dispose())
                loop.run_until_complete(loop.shutdown_asyncgens())
    finally:
        root.removeHandler(log)
        world.client.close()
        world.server.close()
        loop.close()
    return verdict
