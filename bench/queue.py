"""`python -m bench.queue`: what the queue itself costs. No-ops go through a real broker and a real worker process.

The submitting half runs here, as it does in a front door; the worker's engine is the simulated one at
zero delay, so that nothing but the queue and the worker's loop is measured.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import uvloop

from bench import figures, machine
from bench.load import Run, closed_loop
from bench.stack import QUEUE, StackError, service
from shared.errors import SluiceError
from shared.queue.connection import Connection
from shared.queue.producer import Producer
from shared.queue.snapshot import Caps
from shared.queue.waiters import Answer
from shared.request import Req
from shared.sampling import SamplingParams
from shared.settings import QueueSettings
from shared.status import ReqStatus

LATENCY_LIMIT_MS = 1.5
WAIT_S = 30.0
WARM_UP = 500
PINGS = 2000
# In flight to how many requests are counted.
ALONE = {1: 3000}
BOTH = {1: 3000, 64: 20_000}
NO_DELAY = {"ENGINE": "simulated"}


@asynccontextmanager
async def connected(redis_url: str) -> AsyncIterator[tuple[Connection, QueueSettings]]:
    settings = QueueSettings.load(redis_url=redis_url, queue_name=QUEUE)
    connection = Connection.open(settings)
    try:
        yield connection, settings
    finally:
        await connection.close()


def no_op(rid: str) -> Req:
    sampling = SamplingParams(max_tokens=1)
    return Req(
        id=rid, sampling=sampling, bucket_key=sampling.bucket_key, digest=rid, prompt="no-op"
    )


async def measure(redis_url: str, in_flight: int, requests: int) -> Run[Answer]:
    async with connected(redis_url) as (connection, settings):
        producer = Producer(connection, settings)
        await producer.start()

        async def ask(_: int) -> Answer:
            rid = producer.new_id()
            await producer.submit(no_op(rid), Caps(), watch=True)
            try:
                answer = await producer.wait(rid, WAIT_S)
            finally:
                producer.unwatch(rid)
            if answer.outcome.status is not ReqStatus.FINISHED:
                raise StackError(
                    f"a no-op ended as {answer.outcome.status}: {answer.outcome.message}"
                )
            return answer

        try:
            await closed_loop(range(min(WARM_UP, requests)), in_flight, ask)
            return await closed_loop(range(requests), in_flight, ask)
        finally:
            await producer.close()


async def round_trips(redis_url: str) -> Run[bytes]:
    """The least that any call costs: a PING over the connection that submits use. A no-op makes at least three
    such trips, two of them from the worker, so this tells how fast the machine is at the moment.
    """
    async with connected(redis_url) as (connection, _):

        async def ping(_: int) -> bytes:
            reply: bytes = await connection.line.run(("PING",))
            return reply

        await closed_loop(range(WARM_UP), 1, ping)
        return await closed_loop(range(PINGS), 1, ping)


def shown(run: Run[Answer], in_flight: int) -> Iterator[figures.Figure]:
    ms = [seconds * 1000 for seconds in run.latencies_s]
    p50 = figures.median(ms)
    name = f"queue.{in_flight}_in_flight"
    if in_flight == 1:
        yield figures.at_most(f"{name}.latency_p50", p50, "ms", LATENCY_LIMIT_MS)
    else:
        yield figures.plain(f"{name}.latency_p50", p50, "ms")
    yield figures.plain(f"{name}.latency_p99", figures.percentile(ms, 99), "ms")
    yield figures.plain(f"{name}.rate", run.per_s, "requests/s")


def run(sizes: dict[int, int], folder: Path) -> bool:
    all_met = True
    figures.note(machine.described())
    figures.note("starting broker, front door and one worker with the simulated engine")
    with service(folder, NO_DELAY) as stack:
        for in_flight, requests in sizes.items():
            figures.note(f"{requests} no-ops, {in_flight} in flight")
            measured = uvloop.run(measure(stack.redis_url, in_flight, requests))
            all_met = figures.show(shown(measured, in_flight)) and all_met
        trips = uvloop.run(round_trips(stack.redis_url))
        p50_ms = figures.median(trips.latencies_s) * 1000
        figures.show([figures.plain("queue.broker_round_trip_p50", p50_ms, "ms")])
    return all_met


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.queue", description=__doc__)
    parser.add_argument(
        "--latency", action="store_true", help="one in flight alone; else 64 in flight too"
    )
    parser.add_argument("--requests", type=int, help="so many of each size", metavar="N")
    options = parser.parse_args()
    sizes = ALONE if options.latency else BOTH
    if options.requests:
        sizes = dict.fromkeys(sizes, options.requests)
    with tempfile.TemporaryDirectory(prefix="sluice-bench-") as folder:
        try:
            return 0 if run(sizes, Path(folder)) else 1
        except (StackError, SluiceError, TimeoutError) as error:
            figures.note(f"bench.queue: {type(error).__name__}: {error}")
            return 2


if __name__ == "__main__":
    sys.exit(main())
