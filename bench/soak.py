"""`python -m bench.soak --requests 1000000`: what is left of a million requests when all their lives are over.

The whole service runs: broker, front door, one worker with the simulated engine at zero delay. Most requests are
submitted by the queue's own submitting half in this process, every 25th is a `POST /predict` and every 1,000th one of
a list, so that front door and worker both do their real work and their memory means something.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import psutil
import uvloop

from bench import figures, machine
from bench.load import closed_loop
from bench.noop import connected, no_op
from bench.remains import Memory, Remains, beyond
from bench.stack import Service, StackError, service
from shared import garbage
from shared.errors import SluiceError
from shared.queue.producer import Producer
from shared.queue.snapshot import Caps

MIB = 1 << 20
LIFE_S = 5.0
RECORD_S, BODY_S = 70.0, 10.0
SHORT_LIVES = {
    "ENGINE": "simulated",
    **dict.fromkeys(("MAX_QUEUE_S", "MAX_TIMEOUT_S", "SYNC_WAIT_S"), f"{LIFE_S:g}"),
    "RESULT_RECORD_TTL_S": f"{RECORD_S:g}",
    "RESULT_BODY_TTL_S": f"{BODY_S:g}",
}
FIRST = 10_000
SETTLED = 100_000  # from where on the processes must not grow
IN_FLIGHT = 64
HTTP_EVERY, LIST_EVERY, LIST = 25, 1_000, 16
SAMPLES = 100
OVER_LIMIT_S = RECORD_S + 60
MEMORY_LIMIT_MIB, RSS_LIMIT_PERCENT = 2.0, 5.0
PARTS = {"api": "api", "worker": "worker-1"}


@dataclass
class Progress:
    """What was asked and answered so far; a list is one ask and many requests. `rss`: bytes of each process after so
    many asks.
    """

    asked: int = 0
    requests: int = 0
    over_http: int = 0
    ends: Counter[str] = field(default_factory=Counter)
    rss: list[tuple[int, dict[str, int]]] = field(default_factory=list)


class Load:
    """The three ways in which a request comes, by its number."""

    def __init__(self, producer: Producer, client: httpx.AsyncClient, progress: Progress) -> None:
        self._producer = producer
        self._client = client
        self.progress = progress

    async def ask(self, number: int) -> None:
        if number % LIST_EVERY == 0:
            await self._over_http([f"no-op {number}.{i}" for i in range(LIST)])
        elif number % HTTP_EVERY == 0:
            await self._over_http([f"no-op {number}"])
        else:
            await self._in_process()

    async def _in_process(self) -> None:
        producer = self._producer
        rid = producer.new_id()
        await producer.submit(no_op(rid, life_s=LIFE_S), Caps(), watch=True)
        try:
            answer = await producer.wait(rid, 2 * LIFE_S)
            self.progress.ends[answer.outcome.status.value] += 1
        except TimeoutError:
            self.progress.ends["no answer"] += 1
        finally:
            producer.unwatch(rid)
        self.progress.requests += 1

    async def _over_http(self, prompts: Sequence[str]) -> None:
        prompt = prompts[0] if len(prompts) == 1 else list(prompts)
        reply = await self._client.post("/predict", json={"prompt": prompt, "max_new_tokens": 1})
        end = "finished" if reply.status_code == httpx.codes.OK else f"HTTP {reply.status_code}"
        self.progress.ends[end] += len(prompts)
        self.progress.requests += len(prompts)
        self.progress.over_http += len(prompts)


@asynccontextmanager
async def loading(stack: Service, progress: Progress) -> AsyncIterator[Load]:
    lives = {"result_record_ttl_s": RECORD_S, "result_body_ttl_s": BODY_S}
    client = httpx.AsyncClient(base_url=stack.url, timeout=4 * LIFE_S, trust_env=False)
    async with connected(stack.redis_url, **lives) as (connection, settings), client:
        producer = Producer(connection, settings)
        await producer.start()
        garbage.settle()
        try:
            yield Load(producer, client, progress)
        finally:
            await producer.close()


async def drive(stack: Service, numbers: range, total: int, progress: Progress) -> None:
    """Ask these; the processes' memory is looked at a hundred times in `total`."""
    processes = {name: psutil.Process(stack.pid(part)) for name, part in PARTS.items()}
    every = max(1, total // SAMPLES)
    began = time.monotonic()

    async with loading(stack, progress) as load:

        async def ask(number: int) -> None:
            await load.ask(number)
            progress.asked += 1
            done = progress.asked
            if done % every == 0:
                rss = {name: each.memory_info().rss for name, each in processes.items()}
                progress.rss.append((done, rss))
                if done % (10 * every) == 0:
                    note(done, total, done - numbers.start, began, rss)

        await closed_loop(numbers, IN_FLIGHT, ask)


def note(done: int, total: int, here: int, began: float, rss: dict[str, int]) -> None:
    rate = here / (time.monotonic() - began)
    told = ", ".join(f"{name} {size / MIB:.0f} MiB" for name, size in rss.items())
    figures.note(f"{done} of {total}: {rate:.0f}/s, {told}")


def until_over(remains: Remains) -> list[str]:
    """Waits until no key of a request is left; returns those that are still there when that takes too long."""
    began = time.monotonic()
    while left := beyond(remains.names()):
        if time.monotonic() - began > OVER_LIMIT_S:
            return left
        time.sleep(1.0)
    return []


@dataclass(frozen=True)
class Measured:
    """`first` is the broker's memory after the first requests' lives, `last` after all."""

    progress: Progress
    seconds: float
    first: Memory
    last: Memory
    live: dict[str, int]
    names: list[str]
    beyond: list[str]


def measure(stack: Service, total: int, remains: Remains) -> Measured:
    progress = Progress()
    first = min(FIRST, max(1, total // 3))
    figures.note(f"the first {first} requests")
    began = time.monotonic()
    uvloop.run(drive(stack, range(first), total, progress))
    seconds = time.monotonic() - began
    figures.note(f"waiting until their lives are over, {RECORD_S:g} s")
    if left := until_over(remains):
        raise StackError(f"the first requests left keys behind: {' '.join(left[:10])}")
    memory = remains.memory()
    figures.note(f"the other {total - first}")
    began = time.monotonic()
    uvloop.run(drive(stack, range(first, total), total, progress))
    seconds += time.monotonic() - began
    figures.note(f"waiting until their lives are over, {RECORD_S:g} s")
    left = until_over(remains)
    names = remains.names()
    figures.note(f"keys: {' '.join(names)}")
    return Measured(progress, seconds, memory, remains.memory(), remains.live(), names, left)


def growth_percent(samples: Sequence[tuple[int, dict[str, int]]], name: str, settled: int) -> float:
    """How far the largest size is above that at `settled`, the first sample from there on."""
    sizes = [rss[name] for number, rss in samples if number >= settled]
    return 100 * (max(sizes) / sizes[0] - 1)


def shown(measured: Measured, total: int) -> Iterator[figures.Figure]:
    progress, settled = measured.progress, min(SETTLED, max(1, total // 10))
    answered = sum(progress.ends.values()) - progress.ends["no answer"]
    yield figures.at_least("soak.answered", answered, "requests", progress.requests)
    yield figures.plain("soak.finished", progress.ends["finished"], "requests")
    yield figures.plain("soak.over_http", progress.over_http, "requests")
    yield figures.plain("soak.rate", progress.requests / measured.seconds, "requests/s")
    for name, left in measured.live.items():
        yield figures.at_most(f"soak.left.{name}", left, "entries", 0)
    yield figures.plain("soak.keys", len(measured.names), "keys")
    yield figures.at_most("soak.keys_of_requests", len(measured.beyond), "keys", 0)
    used = (measured.last.used - measured.first.used) / MIB
    dataset = (measured.last.dataset - measured.first.dataset) / MIB
    yield figures.plain("soak.broker_memory", measured.first.used / MIB, "MiB")
    yield figures.at_most("soak.broker_memory_growth", used, "MiB", MEMORY_LIMIT_MIB)
    yield figures.plain("soak.broker_dataset_growth", dataset, "MiB")
    for name in PARTS:
        size = next(rss[name] for number, rss in progress.rss if number >= settled)
        grown = growth_percent(progress.rss, name, settled)
        yield figures.plain(f"soak.{name}_rss", size / MIB, "MiB")
        yield figures.at_most(f"soak.{name}_rss_growth", grown, "%", RSS_LIMIT_PERCENT)


def run(total: int, folder: Path) -> bool:
    figures.note(machine.described())
    figures.note("starting broker, front door and one worker with the simulated engine")
    with service(folder, SHORT_LIVES) as stack:
        remains = Remains(stack.redis_url)
        try:
            measured = measure(stack, total, remains)
        finally:
            remains.close()
    return figures.show(shown(measured, total))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.soak", description=__doc__)
    parser.add_argument(
        "--requests", type=int, default=1_000_000, help="in all (1,000,000)", metavar="N"
    )
    options = parser.parse_args()
    if options.requests < SAMPLES:
        parser.error(f"--requests: at least {SAMPLES}")
    with tempfile.TemporaryDirectory(prefix="sluice-bench-") as folder:
        try:
            return 0 if run(options.requests, Path(folder)) else 1
        except (StackError, SluiceError, httpx.HTTPError) as error:
            figures.note(f"bench.soak: {type(error).__name__}: {error}")
            return 2


if __name__ == "__main__":
    sys.exit(main())
