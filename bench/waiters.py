"""`python -m bench.waiters`: 5,000 callers wait at one front door. What that costs it, and the broker.

Every caller has a connection of its own and an open `POST /predict`. Once all of them wait, the front door is looked
at; only then are their requests claimed and answered, by the queue's claiming half in this process.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import psutil
import uvloop

from bench import figures, machine
from bench.answering import answer_all, consuming
from bench.remains import Remains
from bench.stack import Service, StackError, service
from shared.errors import SluiceError
from shared.open_files import raise_open_files

MIB = 1 << 20
RSS_LIMIT_MIB, CONNECTIONS_LIMIT = 400, 10
OPENING = (
    200  # connections at once that are not answered yet: a listening socket's backlog is 2,048
)
SPARE_FILES = 200
ALL_IN_S, ALL_OUT_S = 300.0, 300.0
LIVE_EVERY_S = 0.2
# Long enough for all of them to come in on a slow machine.
SETTINGS = {"ENGINE": "simulated", "SYNC_WAIT_S": "600", "MAX_QUEUE_S": "600"}
BODY = json.dumps({"prompt": "no-op", "max_new_tokens": 1}).encode()


@dataclass(frozen=True)
class Held:
    """The front door at one moment. `connections`: all that the broker has but ours, since no worker runs."""

    rss: int
    connections: int


class Caller:
    """One connection with one open request, by hand: five thousand of a client library's cost more than the service."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def ask(cls, host: str, port: int) -> Caller:
        reader, writer = await asyncio.open_connection(host, port)
        head = (
            f"POST /predict HTTP/1.1\r\nHost: {host}:{port}\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(BODY)}\r\nConnection: close\r\n\r\n"
        )
        writer.write(head.encode() + BODY)
        await writer.drain()
        return cls(reader, writer)

    async def is_answered(self) -> bool:
        """Once the reply is there: whether it is a good one."""
        try:
            status = await self._reader.readline()
            await self._reader.read()
        except OSError:
            return False
        finally:
            self._writer.close()
        return status.split()[1:2] == [b"200"]


async def open_all(url: str, n: int) -> list[Caller]:
    place = urlsplit(url)
    host, port = place.hostname or "", place.port or 80
    callers: list[Caller] = []
    for start in range(0, n, OPENING):
        part = (Caller.ask(host, port) for _ in range(min(OPENING, n - start)))
        callers += await asyncio.gather(*part)
    return callers


async def until_live(remains: Remains, n: int) -> None:
    """Until so many requests are in the queue: each of them has its caller waiting. Raises StackError."""
    began = time.monotonic()
    while (live := remains.live()["live"]) < n:
        if time.monotonic() - began > ALL_IN_S:
            raise StackError(f"only {live} of {n} requests came into the queue")
        await asyncio.sleep(LIVE_EVERY_S)


def look(stack: Service, remains: Remains) -> Held:
    rss: int = psutil.Process(stack.pid("api")).memory_info().rss
    return Held(rss, remains.other_clients())


async def measure(stack: Service, n: int, remains: Remains) -> tuple[Held, Held, int]:
    """The front door before and while they wait, and how many were answered."""
    before = look(stack, remains)
    figures.note(f"{n} callers come in")
    callers = await open_all(stack.url, n)
    await until_live(remains, n)
    held = look(stack, remains)
    figures.note("all wait; now they are answered")
    async with consuming(stack.redis_url) as consumer, asyncio.timeout(ALL_OUT_S):
        answered = asyncio.gather(*(caller.is_answered() for caller in callers))
        await answer_all(consumer, n)
        good = sum(await answered)
    return before, held, good


def shown(before: Held, held: Held, answered: int, n: int) -> Iterator[figures.Figure]:
    rss = held.rss / MIB
    yield figures.at_least("waiters.answered", answered, "requests", n)
    yield figures.at_most("waiters.front_door_rss", rss, "MiB", RSS_LIMIT_MIB)
    yield figures.plain("waiters.front_door_rss_before", before.rss / MIB, "MiB")
    yield figures.plain("waiters.rss_each", 1024 * (rss - before.rss / MIB) / n, "KiB")
    yield figures.at_most(
        "waiters.broker_connections", held.connections, "connections", CONNECTIONS_LIMIT
    )


def run(n: int, folder: Path) -> bool:
    figures.note(machine.described())
    if raise_open_files() < n + SPARE_FILES:
        raise StackError(f"too few open files are allowed for {n} callers (ulimit -n)")
    figures.note("starting broker and front door")
    with service(folder, SETTINGS, workers=0) as stack:
        remains = Remains(stack.redis_url)
        try:
            before, held, answered = uvloop.run(measure(stack, n, remains))
        finally:
            remains.close()
    return figures.show(shown(before, held, answered, n))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.waiters", description=__doc__)
    parser.add_argument("--callers", type=int, default=5_000, help="(5,000)", metavar="N")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="sluice-bench-") as folder:
        try:
            return 0 if run(options.callers, Path(folder)) else 1
        except (StackError, SluiceError, TimeoutError, OSError) as error:
            figures.note(f"bench.waiters: {type(error).__name__}: {error}")
            return 2


if __name__ == "__main__":
    sys.exit(main())
