"""One run from its first process to its verdict, within one wall time: set-up, load with faults, drain, last look."""

from __future__ import annotations

import asyncio
import random
import signal
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

from redis.exceptions import RedisError

from tests.chaos.asking import Asker
from tests.chaos.clients import Client
from tests.chaos.faults import Faults
from tests.chaos.history import EXPIRED, LAST, UNKNOWN, Accepted, History, Look, Remains
from tests.chaos.oracle import RESERVED_S, Verdict, judge
from tests.chaos.stack import DOORS, Stack

SHARDS = (1, 3)
CLIENTS = 32
POLLERS = 16
POLLS_PER_S = 150  # of the last look
STOP_S = 1.5
LATE_S = 20.0  # on a machine that is slower than that: rather late than without having looked
LOOK_SHARE = 0.1
# So long that what a dead front door left half there can be judged. A shorter run has no time for that.
LONG_S = 60.0
# Leases run out, suspects are run apart, the last waits end.
DRAIN_SHARE, DRAIN_S = 0.25, (7.0, 20.0)


@dataclass(frozen=True)
class Result:
    history: History
    verdict: Verdict

    @property
    def is_good(self) -> bool:
        return self.verdict.is_good and not self.history.odd


class Run:
    def __init__(self, seconds: float, seed: int, folder: Path) -> None:
        self._began = time.monotonic()
        self._seconds = seconds
        self._seed = seed
        self._folder = folder
        self._history = History()
        self._is_over = False
        self.shards = self._rng("shards").choice(SHARDS)
        least, most = DRAIN_S
        self._drain_s = min(most, max(least, seconds * DRAIN_SHARE))

    def now(self) -> float:
        return time.monotonic() - self._began

    async def run(self) -> Result:
        """Raises StartError, CancelledError on a SIGTERM; nothing that was started is left, however it ends."""
        this = asyncio.current_task()
        assert this is not None
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, this.cancel)
        async with AsyncExitStack() as stack:
            service = await stack.enter_async_context(
                Stack(self._folder, self.shards, self._history, self._rng("restarts"), self.now)
            )
            asker = await stack.enter_async_context(Asker(service.urls, self._history, self.now))
            self._history.note(self.now(), "all serve")
            await self._load(service, asker)
            last = await self._last_look(asker)
            store = service.store
            remains = Remains(self.now(), await store.left(), await store.letters())
        return Result(self._history, judge(self._history, last, remains))

    async def _load(self, service: Stack, asker: Asker) -> None:
        """Clients and faults at once, then what they leave behind comes to its end."""
        rngs = [self._rng(f"client {number}") for number in range(CLIENTS)]
        lister = Client(CLIENTS, asker, self._history, self._rng("long lists"), self._has_ended)
        rng = self._rng("faults")
        faults = Faults(service, self._history, rng, self.now, lister.submit_long_list)
        async with asyncio.TaskGroup() as group:
            clients = [
                group.create_task(Client(i, asker, self._history, rng, self._has_ended).run())
                for i, rng in enumerate(rngs)
            ]
            look_at = self._seconds * (1 - LOOK_SHARE) - STOP_S
            doors_until = look_at - RESERVED_S if self._seconds >= LONG_S else look_at
            await faults.run(look_at - self._drain_s, doors_until)
            self._is_over, over_at = True, self.now()
            self._history.note(self.now(), "faults and load are over")
            # On a slow machine rather late than before its work could end.
            drained_at = max(self._look_at(), over_at + DRAIN_S[0])
            while self.now() < drained_at and not await self._is_idle(service, clients):
                await asyncio.sleep(0.1)
            for client in clients:
                client.cancel()
        self._history.note(self.now(), "the last look begins")

    def _has_ended(self) -> bool:
        return self._is_over

    def _look_at(self) -> float:
        """When the last look must begin so that it is over in time."""
        return self._seconds - STOP_S - DOORS * len(self._roots()) / POLLS_PER_S

    async def _is_idle(self, service: Stack, clients: Sequence[asyncio.Task[None]]) -> bool:
        try:
            store, are_done = service.store, all(client.done() for client in clients)
            return are_done and not (await store.live() or await store.reserved())
        except (RedisError, OSError):
            return False  # it is just coming back

    def _roots(self) -> list[Accepted]:
        """What is polled: a list shows its children."""
        children = {child for asked in self._history.accepted.values() for child in asked.children}
        return [asked for rid, asked in self._history.accepted.items() if rid not in children]

    async def _last_look(self, asker: Asker) -> dict[str, list[Look]]:
        """Each id at each front door, once all is over."""
        waiting = [(asked, door) for asked in self._roots() for door in range(DOORS)]
        async with asyncio.TaskGroup() as group:
            for _ in range(POLLERS):
                group.create_task(self._poll_all(asker, waiting))
        told: dict[str, list[Look]] = {}
        for rid, asked in self._history.accepted.items():
            latest = {look.by: look for look in asked.looks if look.call == LAST}
            told[rid] = list(latest.values()) if len(latest) == DOORS else []
        return told

    async def _poll_all(self, asker: Asker, waiting: list[tuple[Accepted, int]]) -> None:
        while waiting:
            asked, door = waiting.pop()
            look = await self._poll_until_told(asker, asked, door)
            if look is not None and look.state == UNKNOWN:
                # A list that is not there shows no children; they are not there either, each by itself.
                waiting += [(self._history.accepted[child], door) for child in asked.children]

    async def _poll_until_told(self, asker: Asker, asked: Accepted, door: int) -> Look | None:
        while self.now() < self._seconds + LATE_S:
            look = await asker.poll(door, asked.rid, asked.tenant, call=LAST)
            if look is not None and look.state == EXPIRED:
                look = await asker.timeline(door, asked.rid, asked.tenant, call=LAST)
            if look is not None:
                return look
            await asyncio.sleep(0.2)
        return None

    def _rng(self, what: str) -> random.Random:
        return random.Random(f"{self._seed} {what}")
