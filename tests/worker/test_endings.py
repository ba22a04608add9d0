"""How a worker ends: drained, with an engine that dies, with one that is wedged. Broker and loop are real."""

from __future__ import annotations

import asyncio

from shared.errors import EngineDead
from shared.sampling import SamplingParams
from shared.worker_info import WorkerState
from tests.worker.scripted_engine import ScriptedEngine
from tests.worker.serving import Service, until
from worker.metrics import WorkerMetrics


async def test_a_drain_finishes_what_runs_and_leaves_the_rest_in_the_queue(
    service: Service,
) -> None:
    engine = ScriptedEngine(slots=2)
    first, second, queued = [await service.submit(t) for t in ("hold a", "hold b", "late")]
    async with service.worker(engine, drain_s=30.0) as (loop, task):
        await until(lambda: len(engine.running_texts) == 2)
        loop.stop()
        await asyncio.sleep(0)
        assert not task.done()
        engine.let_go()
        assert await asyncio.wait_for(task, 10) == 0
    for rid in (first, second):
        assert (await service.producer.wait(rid, 10)).outcome.status == "finished"
    assert (await service.record(queued)).state == "Q"


async def test_an_engine_that_dies_with_nothing_running_ends_its_worker_and_blames_nobody(
    service: Service,
) -> None:
    engine = ScriptedEngine()
    async with service.worker(engine) as (_, task):
        await service.ask("one")
        engine.failure = EngineDead("killed while idle")
        late = await service.submit("late")
        assert await asyncio.wait_for(task, 10) == 1
    record = await service.record(late)
    assert (record.state, record.crashes) == ("Q", 0)


async def test_a_drain_hands_back_what_does_not_end_in_time(service: Service) -> None:
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


async def test_a_wedged_engine_loses_its_work_to_another(service: Service) -> None:
    rid = await service.submit("wedge it")
    stalls: list[float] = []
    metrics = WorkerMetrics("w", "scripted")
    async with service.worker(
        ScriptedEngine(), stall_limit_s=0.5, on_stalled=stalls.append, metrics=metrics
    ):
        await until(lambda: len(stalls) > 0)
        await until(lambda: metrics.current is WorkerState.STALLED)
        await until(
            lambda: any(
                seen.info.state is WorkerState.STALLED for seen in service.producer.known_workers
            )
        )

        async def moved() -> bool:
            snapshot = await service.producer.peek(rid)
            return bool(snapshot and snapshot.record and snapshot.record.crashes == 1)

        async with asyncio.timeout(15):
            while not await moved():
                await asyncio.sleep(0.1)


async def test_a_wedged_engine_cannot_hold_up_a_stop_and_its_work_waits_for_no_lease(
    service: Service,
) -> None:
    engine = ScriptedEngine()
    rid = await service.submit("wedge it")
    async with service.worker(engine, drain_s=0.5) as (loop, task):
        await until(lambda: "wedge it" in engine.running_texts)
        loop.stop()
        assert await asyncio.wait_for(task, 4) == 0
    record = await service.record(rid)
    assert (record.state, record.crashes, record.worker) == ("Q", 0, "")


async def test_an_engine_death_hands_back_the_requests_of_every_bucket(service: Service) -> None:
    hot = SamplingParams(max_tokens=8, min_tokens=0, temperature=1.5)
    engine = ScriptedEngine()
    other = await service.submit("hold x", sampling=hot)
    async with service.worker(engine) as (_, task):
        await until(lambda: "hold x" in engine.running_texts)
        rid = await service.submit("die now")
        assert await asyncio.wait_for(task, 5) == 1
    for name in (other, rid):
        record = await service.record(name)
        assert (record.state, record.crashes) == ("Q", 1)
