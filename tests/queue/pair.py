"""A front door's half of the queue and a worker's in one process, over the real broker."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from shared import codec
from shared.errors import BrokerUnavailable
from shared.queue.claiming import Grant
from shared.queue.connection import Connection
from shared.queue.consumer import Consumer, Finished
from shared.queue.emitter import Emission
from shared.queue.producer import Producer
from shared.queue.snapshot import Caps
from shared.request import Body, FinishReason, Report, Req
from shared.sampling import SamplingParams
from shared.settings import QueueSettings
from shared.worker_info import WorkerInfo, WorkerState

SAMPLING = SamplingParams(max_tokens=4)
INFO = WorkerInfo(id="w", state=WorkerState.READY)
FREE = Caps()


class Pair:
    """One front door and one worker in this process, each with its own connections."""

    def __init__(self, url: str, queue: str, **settings: Any) -> None:
        self.settings = QueueSettings.load(redis_url=url, queue_name=queue, **settings)
        self._connections = [Connection.open(self.settings) for _ in range(2)]
        self.producer = Producer(self._connections[0], self.settings)
        self.consumer = Consumer(self._connections[1], self.settings, worker_id="w")

    def req(self, prompt: str = "x", rid: str | None = None, **fields: Any) -> Req:
        return Req(
            id=rid or self.producer.new_id(),
            sampling=SAMPLING,
            bucket_key=SAMPLING.bucket_key,
            digest=fields.pop("digest", "d"),
            prompt=prompt,
            cost_tokens=5,
            **fields,
        )

    def children(self, parent: Req, n: int) -> list[Req]:
        return [self.req(f"item {i}", rid=f"{parent.id}.{i}") for i in range(n)]

    async def answer(self, grant: Grant) -> Finished:
        prompt = codec.decode_req(grant.payload).prompt
        body = Body(text=f"A({prompt})")
        return await self.consumer.finish(grant, Report(finish_reason=FinishReason.stop), body)

    async def claimed(self) -> Grant:
        """The one request that there is."""
        (grant,) = (await self.consumer.claim(1, is_idle=True)).grants
        return grant

    async def say(self, emission: Emission, *texts: str) -> list[str]:
        """Emit each and have it taken. Returns what the last flush said was lost."""
        lost: list[str] = []
        for text in texts:
            self.consumer.emit(emission, text)
            async with asyncio.timeout(10):
                while not lost and self.consumer.has_unsent:
                    lost = await self.consumer.flush()
        return lost

    async def finish(self, grant: Grant, text: str) -> Finished:
        return await self.consumer.finish(
            grant, Report(finish_reason=FinishReason.stop), Body(text=text)
        )

    async def serve(self) -> None:
        while True:
            try:
                claimed = await self.consumer.claim(32, is_idle=True)
            except BrokerUnavailable:
                continue
            if not claimed.grants:
                await self.consumer.wait_for_work(0.5, wants_work=True)
            await asyncio.gather(*map(self.answer, claimed.grants))

    async def close(self) -> None:
        await self.producer.close()
        for connection in self._connections:
            await connection.close()
        self.consumer.close_beats()


@asynccontextmanager
async def pair_on(url: str, queue: str, **settings: Any) -> AsyncIterator[Pair]:
    pair = Pair(url, queue, **settings)
    await pair.producer.start()
    try:
        yield pair
    finally:
        await pair.close()


@asynccontextmanager
async def serving(pair: Pair) -> AsyncIterator[None]:
    task = asyncio.create_task(pair.serve())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def until(condition: Callable[[], bool], timeout_s: float = 10) -> None:
    async with asyncio.timeout(timeout_s):
        while not condition():
            await asyncio.sleep(0.01)
