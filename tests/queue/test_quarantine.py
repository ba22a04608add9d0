"""What ran when its worker died: a poison prompt is found in a few runs, and its batchmates are cleared."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from tests.queue.harness import LEASE_MS, Shard
from tests.worker.scripted_engine import ScriptedEngine
from tests.worker.serving import Service, until

RUN_MS = 1000


@pytest.fixture
async def service(broker_url: str, queue_name: str) -> AsyncIterator[Service]:
    service = Service(broker_url, queue_name, lease_s=2)
    await service.producer.start()
    yield service
    await service.close()


def make_suspects(shard: Shard, n: int, name: str = "q.0-s") -> list[str]:
    """Requests that ran when their engine died."""
    rids = [f"{name}{i:03d}" for i in range(n)]
    for rid in rids:
        shard.submit(rid)
    for grant in shard.claim("dying", n=n)[5:]:
        shard.nack("suspect", grant[0].decode(), grant[1].decode(), "dying")
    return rids


def end_all(shard: Shard) -> None:
    for rid in shard.client.hkeys(shard.keys.fixed("live")):
        shard.end(rid.decode(), "cancel")


def test_one_busy_worker_at_a_time_is_told_of_suspects(shard: Shard) -> None:
    make_suspects(shard, 3)
    assert shard.claim("w1", n=1, idle=False)[2] == 3
    assert shard.claim("w2", n=1, idle=False)[2] == 0
    shard.advance(20_000)
    assert shard.claim("w1", n=0, idle=False)[2] == 3  # holds it for another 30 s
    shard.advance(20_000)
    assert shard.claim("w2", n=1, idle=False)[2] == 0
    shard.advance(11_000)
    assert shard.claim("w2", n=1, idle=False)[2] == 3
    assert shard.claim("w1", n=1, idle=False)[2] == 0
    end_all(shard)


def test_an_idle_worker_is_given_suspects_whoever_holds_the_mark(shard: Shard) -> None:
    make_suspects(shard, 3)
    assert shard.claim("w1", n=1, idle=False)[2] == 3
    reply = shard.claim("w2", n=8, slots=8)
    assert (len(reply[5:]), reply[2], reply[4]) == (2, 1, 1)
    end_all(shard)


def test_a_group_of_suspects_is_no_larger_than_what_was_asked_for(shard: Shard) -> None:
    make_suspects(shard, 5)
    assert len(shard.claim("w1", n=3, slots=100)[5:]) == 3
    assert len(shard.claim("w2", n=8, slots=2)[5:]) == 1
    end_all(shard)


def test_who_takes_suspects_rings_for_the_work_that_it_leaves(shard: Shard) -> None:
    make_suspects(shard, 1)
    shard.submit("q.0-work")
    shard.client.delete(shard.keys.fixed("bell"))
    assert shard.claim("w1", n=8)[4] == 1
    assert shard.client.exists(shard.keys.fixed("bell")) == 1
    end_all(shard)


class Worker:
    """A scripted worker: what it claims runs for a second, and dies with all beside it where one is poison."""

    def __init__(self, shard: Shard, name: str, slots: int) -> None:
        self.shard, self.name, self.slots = shard, name, slots
        self.held: dict[str, str] = {}
        self.until = 0
        self.deaths = 0

    def step(self) -> None:
        shard = self.shard
        if self.held and shard.now_ms >= self.until:
            is_dead = any("poison" in rid for rid in self.held)
            self.deaths += is_dead
            for rid, token in self.held.items():
                if is_dead:
                    shard.nack("suspect", rid, token, self.name)
                else:
                    assert shard.finish(rid, token, self.name)[0] == b"OK"
            self.held.clear()
        if not self.held:
            reply = shard.claim(self.name, n=min(self.slots, 64), slots=self.slots)
            self.held = {grant[0].decode(): grant[1].decode() for grant in reply[5:]}
            self.until = shard.now_ms + RUN_MS
        shard.beat(self.name, {rid: (token, True) for rid, token in self.held.items()})


def work(shard: Shard, workers: list[Worker]) -> None:
    """A second of theirs, and of the housekeeper."""
    shard.advance(1000)
    shard.reap()
    for rid in shard.run(shard.scripts.sweep(100))[0]:
        shard.end(rid.decode(), "dead")
    for worker in workers:
        worker.step()


def test_a_poison_prompt_in_a_batch_of_8_is_found_and_its_batchmates_finish(shard: Shard) -> None:
    rids = [f"q.0-{i}" for i in range(7)] + ["q.0-poison"]
    for rid in rids:
        shard.submit(rid)
    worker = Worker(shard, "w1", 8)
    for _ in range(20):
        work(shard, [worker])
    outcomes = {rid: shard.outcome(rid) for rid in rids}
    codes = {rid: outcome.code for rid, outcome in outcomes.items() if outcome}
    assert codes == {**dict.fromkeys(rids, ""), "q.0-poison": "attempts_exhausted"}
    assert worker.deaths == 3  # in the batch, in a group of two, alone


def test_all_of_256_that_ran_at_a_kill_finish_within_four_leases(shard: Shard) -> None:
    rids = [f"q.0-{i:03d}" for i in range(256)]
    for rid in rids:
        shard.submit(rid)
    killed = shard.claim("killed", n=256, slots=256)[5:]
    shard.beat("killed", {grant[0].decode(): (grant[1].decode(), True) for grant in killed})
    began, worker = shard.now_ms, Worker(shard, "w1", 256)
    while not all(shard.outcome(rid) for rid in rids):
        shard.submit(f"q.0-other{shard.now_ms}")  # the queue is never empty
        work(shard, [worker])
    assert shard.now_ms - began <= 4 * LEASE_MS + 4 * RUN_MS
    assert {outcome.code for rid in rids if (outcome := shard.outcome(rid))} == {""}
    end_all(shard)


async def test_a_poison_prompt_kills_three_engines_and_its_batchmates_are_answered(
    service: Service,
) -> None:
    ids = [await service.submit(text) for text in (*(f"hold {i}" for i in range(7)), "die of it")]
    waits = [asyncio.create_task(service.producer.wait(rid, 30)) for rid in ids]
    deaths = 0
    while not all(wait.done() for wait in waits):
        engine = ScriptedEngine(slots=8)
        engine.let_go()
        async with service.worker(engine) as (_, task):
            await until(lambda: task.done() or all(wait.done() for wait in waits))
            deaths += task.done()
    codes = [(await wait).outcome.code for wait in waits]
    assert codes == [""] * 7 + ["attempts_exhausted"]
    assert deaths == 3


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("worker.loop.SUSPECTS_WAIT_S", 0.2)
    monkeypatch.setattr("worker.loop.SUSPECTS_LOOK_S", 0.1)


@asynccontextmanager
async def dying(service: Service, text: str) -> AsyncIterator[Callable[[], Awaitable[str]]]:
    """A worker that holds a request; what comes is called once its engine has died under it, and tells the id."""
    rid = await service.submit(text)
    async with service.consumer() as consumer:
        claimed = await consumer.claim(1, is_idle=True)

        async def die() -> str:
            await consumer.suspect(claimed.grants, "its engine died")
            return rid

        yield die


@pytest.mark.usefixtures("hasty")
async def test_one_of_two_busy_workers_empties_itself_and_the_other_goes_on(
    service: Service,
) -> None:
    engines = ScriptedEngine(), ScriptedEngine()
    async with (
        dying(service, "suspect") as die,
        service.worker(engines[0]),
        service.worker(engines[1]),
    ):
        for n_held in range(1, 50):
            await service.submit(f"hold {n_held}")
            await until(lambda: sum(len(e.running_texts) for e in engines) == n_held)  # noqa: B023
            if all(engine.running_texts for engine in engines):
                break
        rid = await die()
        busy, in_a_row = engines[0], 0
        while in_a_row < 12:  # of late, all went to one of them
            n_calls = len(busy.calls)
            assert (await service.ask("later")).body is not None
            in_a_row += 1
            if len(busy.calls) == n_calls:
                busy, in_a_row = engines[1 - engines.index(busy)], 0
        emptying = engines[1 - engines.index(busy)]
        assert ["suspect"] not in busy.calls + emptying.calls
        emptying.let_go()
        assert (await service.producer.wait(rid, 10)).outcome.crashes == 1
        assert ["suspect"] in emptying.calls
        busy.let_go()


@pytest.mark.usefixtures("hasty")
async def test_a_worker_that_empties_itself_goes_on_once_another_has_the_suspects(
    service: Service,
) -> None:
    busy, idle = ScriptedEngine(), ScriptedEngine(slots=1)
    async with dying(service, "hold suspect") as die, service.worker(busy):
        await service.submit("hold work")
        await until(lambda: "hold work" in busy.running_texts)
        rid = await die()
        while True:
            waiting = await service.submit("later")
            try:
                await service.producer.wait(waiting, 0.5)
            except TimeoutError:
                break  # it takes nothing more
        n_calls = len(busy.calls)
        async with service.worker(idle):
            await until(lambda: "hold suspect" in idle.running_texts)
            assert (await service.producer.wait(waiting, 10)).body is not None
            assert len(busy.calls) > n_calls
            for engine in (busy, idle):
                engine.let_go()
            assert (await service.producer.wait(rid, 10)).outcome.crashes == 1
