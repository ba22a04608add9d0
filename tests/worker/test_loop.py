"""The worker's loop over the real broker: what happens to every request, whatever becomes of its run."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from shared.errors import BrokerUnavailable
from shared.queue.connection import Connection
from shared.queue.consumer import Consumer
from shared.queue.producer import Producer
from shared.queue.snapshot import Caps
from shared.queue.waiters import Answer
from shared.request import Req
from shared.sampling import SamplingParams
from shared.settings import QueueSettings
from shared.worker_info import WorkerInfo, WorkerState
from tests.broker import Server
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
        consumer = Consumer(connection, self.settings, worker_id="w")
        loop = Loop(
            engine,
            PlainPrompts(),
            consumer,
            info=WorkerInfo(id="w", state=WorkerState.READY, slots=engine.slots),
            metrics=WorkerMetrics("w", engine.name),
            **{
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

    async def close(self) -> None:
        await self.producer.close()
        await self.connection.close()


@pytest.fixture
async def service(broker_url: str, queue_name: str) -> AsyncIterator[Service]:
    service = Service(broker_url, queue_name, lease_s=2)
    await service.producer.start()
    yield service
    await service.close()


async def until(condition: Callable[[], bool], timeout_s: float = 15) -> None:
    async with asyncio.timeout(timeout_s):
        while not condition():
            await asyncio.sleep(0.01)


async def test_requests_are_answered_by_id_in_buckets(service: Service) -> None:
    engine = ScriptedEngine(slots=32)
    hot = SamplingParams(max_tokens=8, min_tokens=0, temperature=1.5)
    ids = [await service.submit(f"q{i}", **({"sampling": hot} if i % 2 else {})) for i in range(10)]
    async with service.worker(engine):
        answers = [await service.producer.wait(rid, 10) for rid in ids]
    assert [answer.body.text if answer.body else "" for answer in answers] == [
        f"A(q{i})" for i in range(10)
    ]
    assert engine.calls == [[f"q{i}" for i in range(0, 10, 2)], [f"q{i}" for i in range(1, 10, 2)]]
    report = answers[0].outcome.report
    assert report.batch_size == 5
    assert report.usage.completion_tokens == 3
    assert report.batch_id
    assert answers[1].outcome.report.batch_id != report.batch_id


async def test_one_failing_request_costs_itself_alone(service: Service) -> None:
    async with service.worker(ScriptedEngine()):
        answers = await asyncio.gather(
            *map(service.ask, ("good", "fail this", "x" * 101, "bad template"))
        )
    assert [answer.outcome.code for answer in answers] == [
        "",
        "engine_error",
        "prompt_too_long",
        "invalid_request",
    ]
    assert answers[0].body is not None


async def test_a_prompt_too_long_never_reaches_the_engine(service: Service) -> None:
    engine = ScriptedEngine()
    async with service.worker(engine):
        answer = await service.ask("y" * 500)
    assert answer.outcome.code == "prompt_too_long"
    assert "500" in answer.outcome.message
    assert engine.calls == []


async def test_cancelling_a_running_one_aborts_the_engine_within_a_second(service: Service) -> None:
    engine = ScriptedEngine()
    async with service.worker(engine):
        rid = await service.submit("hold on")
        await until(lambda: "hold on" in engine.running_texts)
        await service.producer.cancel(rid)
        await until(lambda: engine.aborted == [rid], 1.0)
        assert (await service.producer.wait(rid, 5)).outcome.status == "cancelled"
        assert (await service.ask("next")).body is not None


async def test_a_deadline_ends_a_running_request_with_its_text_so_far(service: Service) -> None:
    async with service.worker(ScriptedEngine()):
        answer = await service.ask("hold it", timeout_s=0.5)
    assert answer.outcome.code == "deadline_exceeded"
    stored = await service.producer.answer(answer.id)
    assert stored is not None
    assert stored.body is not None
    assert stored.body.text == "A(hold it)"


async def test_a_drain_finishes_what_runs_and_hands_back_the_rest(service: Service) -> None:
    engine = ScriptedEngine(slots=2)
    short, long, queued = [await service.submit(text) for text in ("hold a", "hold b", "late")]
    async with service.worker(engine, drain_s=1.0) as (loop, task):
        await until(lambda: len(engine.running_texts) == 2)
        loop.stop()
        assert await asyncio.wait_for(task, 10) == 0
    for rid in (short, long, queued):
        snapshot = await service.producer.peek(rid)
        assert snapshot is not None
        assert snapshot.record is not None
        assert (snapshot.record.state, snapshot.record.crashes, snapshot.record.attempts) == (
            "Q",
            0,
            0,
        )
    again = ScriptedEngine()
    again.let_go()
    async with service.worker(again):
        for rid in (short, long, queued):
            assert (await service.producer.wait(rid, 10)).outcome.status == "finished"


async def test_an_engine_death_hands_back_suspects_and_exits(service: Service) -> None:
    engine = ScriptedEngine()
    ids = [await service.submit(text) for text in ("hold x", "die now")]
    async with service.worker(engine) as (_, task):
        assert await asyncio.wait_for(task, 10) == 1
    for rid in ids:
        snapshot = await service.producer.peek(rid)
        assert snapshot is not None
        assert snapshot.record is not None
        assert snapshot.record.crashes == 1


async def test_a_poison_prompt_ends_dead_and_its_batchmates_are_answered(service: Service) -> None:
    names = ["hold 1", "hold 2", "hold 3", "die of it"]
    ids = [await service.submit(text) for text in names]
    for _ in range(8):
        engine = ScriptedEngine()
        engine.let_go()
        async with service.worker(engine) as (_, task):
            waits = [asyncio.create_task(service.producer.wait(rid, 20)) for rid in ids]
            while not task.done() and not all(wait.done() for wait in waits):
                await asyncio.sleep(0.02)
            for wait in waits:
                wait.cancel()
            is_over = await service.producer.answers(ids)
            if all(is_over):
                break
    outcomes = [(await service.producer.wait(rid, 5)).outcome for rid in ids]
    assert [outcome.code for outcome in outcomes] == ["", "", "", "attempts_exhausted"]


async def test_a_wedged_engine_loses_its_work_to_another(service: Service) -> None:
    rid = await service.submit("wedge it")
    stalls: list[float] = []
    async with service.worker(ScriptedEngine(), stall_limit_s=0.5, on_stalled=stalls.append):
        await until(lambda: len(stalls) > 0)
        await until(lambda: service.producer.known_workers[0].info.state is WorkerState.STALLED)

        async def moved() -> bool:
            snapshot = await service.producer.peek(rid)
            return bool(snapshot and snapshot.record and snapshot.record.crashes == 1)

        async with asyncio.timeout(15):
            while not await moved():
                await asyncio.sleep(0.1)


async def test_an_unreadable_record_is_ended_and_the_worker_lives(service: Service) -> None:
    rid = await service.submit("newer", v=99)
    async with service.worker(ScriptedEngine()):
        answer = await service.producer.wait(rid, 10)
        assert answer.outcome.code == "bad_record"
        assert (await service.ask("fine")).body is not None


async def test_leases_outlive_a_blocked_event_loop(service: Service) -> None:

    engine = ScriptedEngine()
    async with service.worker(engine):
        rid = await service.submit("hold tight")
        await until(lambda: "hold tight" in engine.running_texts)
        await asyncio.sleep(0.2)
        time.sleep(4)  # noqa: ASYNC251 - twice the lease, on purpose
        engine.let_go()
        answer = await service.producer.wait(rid, 10)
    assert answer.outcome.status == "finished"
    assert (answer.outcome.crashes, answer.outcome.attempts) == (0, 0)


async def test_a_worker_rides_out_a_broker_restart(queue_name: str) -> None:
    server = Server(aof=True).start()
    service = Service(server.url, queue_name)
    await service.producer.start()
    engine = ScriptedEngine()
    try:
        async with service.worker(engine):
            rid = await service.submit("hold through")
            await until(lambda: "hold through" in engine.running_texts)
            server.stop(signal.SIGKILL)
            engine.let_go()
            with pytest.raises(BrokerUnavailable):
                await service.submit("away")
            server.start()
            assert (await service.producer.wait(rid, 20)).outcome.status == "finished"
            assert (await service.ask("after")).body is not None
    finally:
        await service.close()
        server.stop()
        server.clean()


async def test_workers_tell_their_state(service: Service) -> None:
    engine = ScriptedEngine(slots=1)
    async with service.worker(engine):
        await service.submit("hold")
        await until(
            lambda: (
                bool(service.producer.known_workers)
                and service.producer.known_workers[0].info.state is WorkerState.BUSY
            )
        )
        engine.let_go()
    await until(lambda: service.producer.known_workers == ())
