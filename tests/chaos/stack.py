"""The service under test: one broker, two front doors, three workers, and proxies before the broker for some."""

from __future__ import annotations

import asyncio
import random
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx

from tests.chaos.history import MAX_CRASHES, History
from tests.chaos.parts import Part
from tests.chaos.proxy import Proxy
from tests.chaos.store import Store
from tests.e2e.places import environment, free_port
from tests.valkey_server import Server

QUEUE = "chaos"
TENANTS = ("first-key", "second-key", "third-key")
DOORS, WORKERS = 2, 3
# Each of these reaches the broker through a proxy of its own; the others directly.
PROXIED = ("door-2", "worker-2", "worker-3")
START_LIMIT_S = 60.0
RESTART_S = (0.05, 0.8)

SETTINGS = {
    "QUEUE_NAME": QUEUE,
    "DURABILITY": "aof",
    "REQUIRE_PERSISTENCE": "1",
    "LEASE_S": "2",
    "MAX_CRASHES": str(MAX_CRASHES),
    "PROFILE": "neutral",
    "API_KEYS": ",".join(TENANTS),
    # A front door learns within RECONCILED_S what the broker has forgotten: most of those that wait are told.
    "SYNC_WAIT_S": "12",
    "MAX_QUEUE_S": "240",
    "MAX_TIMEOUT_S": "240",
    "RESULT_RECORD_TTL_S": "7200",
    "RESULT_BODY_TTL_S": "7200",
    "API_DRAIN_S": "1",
    "DRAIN_S": "1",
    "ENGINE": "simulated",
    "SIM_FIRST_TOKEN_S": "0.05",
    "SIM_TOKEN_S": "0.04",
    "SIM_SLOTS": "8",
}


class StartError(Exception):
    """The service did not come up."""


class Stack:
    """`async with` it: everything is started on the way in and ended on the way out, whatever happened.

    `now` counts seconds since the run began, as the history does.
    """

    def __init__(
        self,
        folder: Path,
        shards: int,
        history: History,
        rng: random.Random,
        now: Callable[[], float],
    ) -> None:
        self._folder = folder
        self._settings = {**SETTINGS, "SHARDS": str(shards)}
        self._history = history
        self._rng = rng
        self._now = now
        self._is_over = False
        # Each write is on disk before it is acknowledged. `everysec` puts a write off while a sync is under way and
        # acknowledges all the same, so that a kill may take the last acknowledged requests along.
        server = Server(folder, aof=True, extra=("--appendfsync", "always"))
        self.store = Store(server.url, QUEUE, shards)
        self.broker = self._part("broker", server.command, environment())
        self.proxies = {name: Proxy(folder / f"{name}.sock", server.socket) for name in PROXIED}
        self.urls = [f"http://127.0.0.1:{free_port()}" for _ in range(DOORS)]
        self.doors = [
            self._service(f"door-{i}", "api", server.url, PORT=url.rpartition(":")[2])
            for i, url in enumerate(self.urls, 1)
        ]
        self.workers = [
            self._service(name, "worker", server.url, WORKER_ID=name)
            for name in (f"worker-{i}" for i in range(1, WORKERS + 1))
        ]

    @property
    def parts(self) -> list[Part]:
        return [*self.workers, *self.doors, self.broker]

    async def __aenter__(self) -> Self:
        try:
            self.broker.start()
            await self._until("the broker answers", self.store.answers)
            for proxy in self.proxies.values():
                await proxy.start()
            for part in (*self.doors, *self.workers):
                part.start()
            await self.until_all_serve()
        except BaseException:
            await self.stop()
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.stop()

    async def stop(self) -> None:
        """The processes first, without a wait: so that nothing can come between."""
        self._is_over = True
        for part in self.parts:
            part.end()
        for proxy in self.proxies.values():
            await proxy.close()
        await self.store.close()

    async def until_all_serve(self, limit_s: float = START_LIMIT_S) -> None:
        async with httpx.AsyncClient(trust_env=False, timeout=2) as client:

            async def all_serve() -> bool:
                try:
                    shown = [await client.get(f"{url}/workers") for url in self.urls]
                except httpx.HTTPError:
                    return False
                return all(r.status_code == httpx.codes.OK and _serving(r.json()) for r in shown)

            await self._until("all serve", all_serve, limit_s)

    async def _until(
        self, what: str, is_so: Callable[[], Awaitable[bool]], limit_s: float = START_LIMIT_S
    ) -> None:
        until = time.monotonic() + limit_s
        while not await is_so():
            if time.monotonic() > until:
                raise StartError(f"waited {limit_s:g} s in vain: {what}")
            await asyncio.sleep(0.05)

    def _service(self, name: str, module: str, url: str, **own: str) -> Part:
        proxy = self.proxies.get(name)
        env = environment(**self._settings, REDIS_URL=proxy.url if proxy else url, **own)
        return self._part(name, (sys.executable, "-m", module), env)

    def _part(self, name: str, command: Any, env: dict[str, str]) -> Part:
        return Part(
            name,
            command,
            env,
            self._folder,
            pause_s=lambda: self._rng.uniform(*RESTART_S),
            on_end=self._on_end,
        )

    def _on_end(self, name: str, code: int, was_asked: bool) -> None:
        self._history.note(self._now(), f"{name} ended with {code}")
        if not was_asked:
            self._history.odd.append(f"{self._now():.3f} {name} ended by itself with {code}")


def _serving(shown: dict[str, Any]) -> bool:
    live = {w["id"] for w in shown["workers"] if w["is_live"] and w["state"] in ("ready", "busy")}
    return len(live) == WORKERS
