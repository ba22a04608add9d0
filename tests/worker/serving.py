"""A front door and workers in this process over the real broker, for tests of the worker's shell."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from shared.queue.connection import Connection
from shared.queue.consumer import Consumer
from shared.queue.producer import Producer
from shared.queue.snapshot import Caps
from shared.queue.waiters import Answer
from shared.request import Record, Req
from shared.sampling import SamplingParams
from shared.settings import QueueSettings
from shared.worker_info import WorkerInfo, WorkerState
from tests.worker.scripted_engine import PlainPrompts, ScriptedEngine
from worker.loop import Loop
from worker.metrics import WorkerMetrics

FREE = Caps()


class Service:
    """A front door in this process, and workers that come and go."""

    def __init__(self, url: str, queue: str, **settings: Any) -> None:
        self.settings = QueueSettings.load(redis_url=url, queue_name=queue, **settings)
        self.connection = Connection.open(self.settings)
        self.producer = Producer(self.connection, self.settings)

    async def submit(self, prompt: str, **fields: Any) -> str:
        params = fields.pop("sampling", SamplingParams(max_tokens=8, min_tokens=0))
        req = Req(
            id=self.producer.new_id(),
            sampling=params,
            bucket_key=params.bucket_key,
            digest="d",
            prompt=prompt,
            **fields,
        )
        await self.producer.submit(req, FREE, watch=True)
        return req.id

    async def ask(self, prompt: str, **fields: Any) -> Answer:
        rid = await self.submit(prompt, **fields)
        return await self.producer.wait(rid, 15)

    @asynccontextmanager
    async def worker(
        self, engine: ScriptedEngine, **options: Any
    ) -> AsyncIterator[tuple[Loop, asyncio.Task[int]]]:
        connection = Connection.open(self.settings)
        consumer_type: type[Consumer] = options.pop("consumer_type", Consumer)
        consumer = consumer_type(connection, self.settings, worker_id="w")
        loop = Loop(
            engine,
            options.pop("prompts", PlainPrompts()),
            consumer,
            info=WorkerInfo(id="w", state=WorkerState.READY, slots=engine.slots),
            **{
                "metrics": WorkerMetrics("w", engine.name),
                "claim_max": 64,
                "drain_s": 5.0,
                "stall_limit_s": 60.0,
                "on_stalled": lambda seconds: None,
                **options,
            },
        )
        task = asyncio.create_task(loop.run())
        try:
            yield loop, task
        finally:
            loop.stop()
            loop.stop()
            await asyncio.gather(task, return_exceptions=True)
            await connection.close()

    @asynccontextmanager
    async def consumer(self) -> AsyncIterator[Consumer]:
        """The queue's half of a worker, without one around it."""
        connection = Connection.open(self.settings)
        consumer = Consumer(connection, self.settings, worker_id="bare")
        yield consumer
        consumer.close_beats()
        await connection.close()

    async def record(self, rid: str) -> Record:
        """Of a live request."""
        snapshot = await self.producer.peek(rid)
        assert snapshot is not None
        assert snapshot.record is not None
        return snapshot.record

    async def close(self) -> None:
        await self.producer.close()
        await self.connection.close()


async def until(condition: Callable[[], bool], timeout_s: float = 15) -> None:
    async with asyncio.timeout(timeout_s):
        while not condition():
            await asyncio.sleep(0.01)
