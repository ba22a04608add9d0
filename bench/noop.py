"""Our side of a no-op: the submitting half of the queue in this process, as it runs inside a front door."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from functools import cache

from bench.load import Run, closed_loop
from bench.stack import QUEUE, StackError
from shared import garbage
from shared.queue.connection import Connection
from shared.queue.producer import Producer
from shared.queue.snapshot import Caps
from shared.queue.waiters import Answer
from shared.request import Req
from shared.sampling import SamplingParams
from shared.settings import QueueSettings
from shared.status import ReqStatus

WAIT_S = 30.0
FEW, PINGS = 500, 2000


@asynccontextmanager
async def connected(
    redis_url: str, **own: float
) -> AsyncIterator[tuple[Connection, QueueSettings]]:
    """`own`: settings that differ from the defaults."""
    settings = QueueSettings.load(redis_url=redis_url, queue_name=QUEUE, **own)
    connection = Connection.open(settings)
    try:
        yield connection, settings
    finally:
        await connection.close()


@cache
def _sampling() -> tuple[SamplingParams, str]:
    """With the bucket key. Of all alike: to check and to hash them is intake's work, and none of the queue's."""
    sampling = SamplingParams(max_tokens=1)
    return sampling, sampling.bucket_key


def no_op(rid: str, *, life_s: float = WAIT_S) -> Req:
    """`life_s`: how long it may wait, and how long it may take in all."""
    sampling, bucket_key = _sampling()
    return Req(
        id=rid,
        sampling=sampling,
        bucket_key=bucket_key,
        digest=rid,
        prompt="no-op",
        queue_timeout_s=life_s,
        timeout_s=life_s,
    )


async def measure(
    redis_url: str, in_flight: int, warm_up: Iterable[int], items: Iterable[int]
) -> Run[Answer]:
    """Raises StackError for a no-op that is not finished."""
    async with connected(redis_url) as (connection, settings):
        producer = Producer(connection, settings)
        await producer.start()
        garbage.settle()

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
            await closed_loop(warm_up, in_flight, ask)
            return await closed_loop(items, in_flight, ask)
        finally:
            await producer.close()


async def round_trips(redis_url: str) -> Run[bytes]:
    """The least that any call costs: a PING over the connection that submits use. A no-op makes two such trips, one of
    them from the worker, and wakes both sides once besides, so this tells how fast the machine is at the moment.
    """
    async with connected(redis_url) as (connection, _):

        async def ping(_: int) -> bytes:
            reply: bytes = await connection.line.run(("PING",))
            return reply

        await closed_loop(range(FEW), 1, ping)
        return await closed_loop(range(PINGS), 1, ping)
