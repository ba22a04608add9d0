"""The whole service in this process for one vector: the front door, a real broker, the worker's loop, and the
engine of the recordings in the place of the one that the settings choose.
"""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass

import httpx

from api.settings import ApiSettings
from shared.queue.connection import Connection
from shared.queue.consumer import Consumer
from shared.worker_info import WorkerInfo, WorkerState
from tests.api.serving import eventually, front_door
from tests.vectors.engines import ABLE
from tests.vectors.scripted import MANY, RecordedEngine
from tests.vectors.surroundings import Surroundings
from worker.engine_choice import engines_to_try
from worker.engines.simulated import SimulatedTokenizer
from worker.loop import Loop
from worker.metrics import WorkerMetrics
from worker.prompt import Prompts
from worker.settings import WorkerSettings

WORKER = "recorded"
SOON_S = 0.002


@dataclass
class Service:
    client: httpx.AsyncClient
    engine: RecordedEngine


@contextlib.asynccontextmanager
async def running(around: Surroundings, script: Mapping[str, str | None]) -> AsyncIterator[Service]:
    """With the settings of the environment, on a machine that could run any engine, on a queue of its own."""
    place = {"redis_url": around.broker_url(), "queue_name": f"v-{uuid.uuid4().hex[:16]}"}
    settings = WorkerSettings.load(**place, claim_max=MANY)
    engine = RecordedEngine(engines_to_try(settings, ABLE)[0], script)
    async with front_door(ApiSettings.load(**place)) as front, _working(settings, engine):
        await eventually(lambda: bool(front.services.producer.known_workers), every_s=SOON_S)
        yield Service(front.client, engine)


@contextlib.asynccontextmanager
async def _working(settings: WorkerSettings, engine: RecordedEngine) -> AsyncIterator[None]:
    connection = Connection.open(settings)
    loop = Loop(
        engine,
        Prompts(SimulatedTokenizer(), wants_fast_path=settings.wants_fast_template),
        Consumer(connection, settings, worker_id=WORKER),
        info=WorkerInfo(
            id=WORKER,
            state=WorkerState.READY,
            engine=engine.name,
            model=WORKER,
            slots=engine.slots,
            batch_mode=settings.batch_mode,
        ),
        metrics=WorkerMetrics(WORKER, engine.name),
        claim_max=settings.claim_max,
        drain_s=settings.drain_s,
        stall_limit_s=settings.stall_limit_s,
        on_stalled=lambda seconds: None,
    )
    task = asyncio.create_task(loop.run())
    try:
        yield
    finally:
        loop.stop()
        await asyncio.gather(task, return_exceptions=True)
        await connection.close()
