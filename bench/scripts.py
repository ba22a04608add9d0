"""`python -m bench.scripts`: how long each of the queue's scripts holds the broker, with 100,000 requests queued.

Payloads are mixed up to 64 KiB. The two halves of the queue run in this process, as in front door and worker, with the
bounds that those give the scripts; a front door and its housekeeper run beside. Times are the server's own (SLOWLOG).
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import uvloop

from bench import figures, machine
from bench.answering import consuming
from bench.deep_queue import DeepQueue
from bench.noop import connected
from bench.slow_log import LEAST_US, SlowLog, scripts
from bench.stack import Service, StackError, service
from shared import garbage
from shared.errors import SluiceError
from shared.queue.producer import Producer

P999_LIMIT_MS, LONGEST_LIMIT_MS = 5.0, 20.0
ENOUGH = 1_000  # calls, for a thousandth of them to be one
LEASE_S = 2.0
SETTINGS = {"ENGINE": "simulated", "QUEUE_CAP": "0", "LEASE_S": f"{LEASE_S:g}"}
# A disk that is slow to take the broker's log in holds calls up; that is no script's time and ends no run.
OWN = {"lease_s": LEASE_S, "broker_budget_s": 30.0}
QUEUED, ROUNDS = 100_000, 40
FILL = 2_000  # between two looks at the log


async def measure(stack: Service, queued: int, rounds: int, log: SlowLog) -> None:
    async with (
        connected(stack.redis_url, **OWN) as (connection, settings),
        consuming(stack.redis_url, **OWN) as consumer,
    ):
        producer = Producer(connection, settings)
        await producer.start()
        garbage.settle()
        queue = DeepQueue(producer, consumer)
        try:
            log.start()
            for start in range(0, queued, FILL):
                await queue.submit(min(FILL, queued - start))
                log.fetch()
            figures.note(f"{queued} are queued; {rounds} rounds of work")
            began = time.monotonic()
            for number in range(rounds):
                await queue.round(number)
                log.fetch()
                if number % 10 == 9:
                    figures.note(f"round {number + 1}: {time.monotonic() - began:.0f} s")
        finally:
            await producer.close()
    log.fetch()


def shown(times_ms: Mapping[str, list[float]]) -> Iterator[figures.Figure]:
    every = [ms for times in times_ms.values() for ms in times]
    yield figures.plain("scripts.calls", len(every), "calls")
    yield figures.at_most("scripts.p999", figures.percentile(every, 99.9), "ms", P999_LIMIT_MS)
    yield figures.at_most("scripts.longest", max(every), "ms", LONGEST_LIMIT_MS)
    for script in scripts():
        name = script.name.replace(", ", "_")
        times = times_ms.get(script.name)
        if not times:
            figures.note(f"{name}: not a call of {LEAST_US} µs or more")
            continue
        p999 = figures.percentile(times, 99.9)
        yield figures.plain(f"scripts.{name}.calls", len(times), "calls")
        yield figures.plain(f"scripts.{name}.p50", figures.median(times), "ms")
        if len(times) >= ENOUGH:
            yield figures.at_most(f"scripts.{name}.p999", p999, "ms", P999_LIMIT_MS)
        yield figures.at_most(f"scripts.{name}.longest", max(times), "ms", LONGEST_LIMIT_MS)


def run(queued: int, rounds: int, folder: Path) -> bool:
    figures.note(machine.described())
    figures.note("starting broker and front door")
    with service(folder, SETTINGS, workers=0) as stack:
        log = SlowLog(stack.redis_url)
        try:
            uvloop.run(measure(stack, queued, rounds, log))
        finally:
            log.close()
    return figures.show(shown(log.times_ms))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.scripts", description=__doc__)
    parser.add_argument("--queued", type=int, default=QUEUED, help="(100,000)", metavar="N")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="of work (40)", metavar="N")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="sluice-bench-") as folder:
        try:
            return 0 if run(options.queued, options.rounds, Path(folder)) else 1
        except (StackError, SluiceError, TimeoutError) as error:
            figures.note(f"bench.scripts: {type(error).__name__}: {error}")
            return 2


if __name__ == "__main__":
    sys.exit(main())
