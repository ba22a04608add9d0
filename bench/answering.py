"""A worker without an engine, in this process: the queue's claiming half, which answers whatever it claims."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from bench.noop import connected
from shared.queue.claiming import Grant
from shared.queue.consumer import Consumer
from shared.request import Body, FinishReason, Report, Usage
from shared.worker_info import WorkerInfo, WorkerState

SLOTS = 256
CLAIM = 32  # as a worker's CLAIM_MAX
WAIT_S = 0.5
ANSWER = Body(text="A(no-op)")
REPORT = Report(finish_reason=FinishReason.length, usage=Usage(3, 1))
INFO = WorkerInfo(id="bench", state=WorkerState.READY, slots=SLOTS)


@asynccontextmanager
async def consuming(redis_url: str, **own: float) -> AsyncIterator[Consumer]:
    """Its keys are gone at the end, as after a clean stop. `own`: settings that differ from the defaults."""
    async with connected(redis_url, **own) as (connection, settings):
        consumer = Consumer(connection, settings, worker_id="bench")
        try:
            yield consumer
            await consumer.leave()
        finally:
            consumer.close_beats()


async def claim(consumer: Consumer, n: int = CLAIM) -> list[Grant]:
    return (await consumer.claim(n, is_idle=True, slots=SLOTS)).grants


async def answer(consumer: Consumer, grants: Sequence[Grant]) -> None:
    await asyncio.gather(*(consumer.finish(grant, REPORT, ANSWER) for grant in grants))


async def answer_all(consumer: Consumer, n: int) -> None:
    """Until so many were answered."""
    done = 0
    while done < n:
        grants = await claim(consumer)
        if not grants:
            await consumer.wait_for_work(WAIT_S, wants_work=True)
        await answer(consumer, grants)
        done += len(grants)
