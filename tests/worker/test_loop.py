"""The worker's loop over the real broker: what happens to every request, whatever becomes of its run."""

from __future__ import annotations

import asyncio
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import redis

from shared.errors import BrokerUnavailable
from shared.queue.claiming import Claimed
from shared.queue.consumer import Consumer, News
from shared.queue.keys import Keys
from shared.queue.scripts import Scripts
from shared.request import Usage
from shared.sampling import SamplingParams
from shared.worker_info import WorkerState
from tests.valkey_server import Server
from tests.worker.scripted_engine import ScriptedEngine
from tests.worker.serving import Service, until


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


class Noting(Consumer):
    """A real consumer that remembers what it was asked, and when it heard something."""

    def __init__(self, *options: Any, **more: Any) -> None:
        super().__init__(*options, **more)
        self.notes: list[str] = []

    async def claim(self, n: int, **options: Any) -> Claimed:
        self.notes.append("claim")
        return await super().claim(n, **options)

    async def wait_for_work(self, timeout_s: float, **options: Any) -> News:
        self.notes.append("listen")
        news = await super().wait_for_work(timeout_s, **options)
        self.notes.append("heard")
        return news


async def test_what_comes_to_an_idle_worker_costs_no_claim_besides_the_one_at_the_bell(
    service: Service,
) -> None:
    async with service.worker(ScriptedEngine(), consumer_type=Noting) as (loop, _):
        consumer = loop._consumer
        assert isinstance(consumer, Noting)
        await until(lambda: consumer.notes[-1:] == ["listen"])
        await service.ask("x")
        claims = consumer.notes.count("claim")
        for i in range(3):
            await until(lambda: consumer.notes[-1:] == ["listen"])
            await service.ask(f"y{i}")
        assert consumer.notes.count("claim") == claims


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


async def test_a_cancelled_run_tells_what_it_used(service: Service) -> None:
    engine = ScriptedEngine()
    rid = await service.submit("hold it")
    async with service.worker(engine):
        await until(lambda: "hold it" in engine.running_texts)
        await service.producer.cancel(rid)
        async with asyncio.timeout(10):
            while True:
                answer = await service.producer.answer(rid)
                assert answer is not None
                if answer.outcome.report_json:
                    break
                await asyncio.sleep(0.01)
    report = answer.outcome.report
    assert (report.usage, report.finish_reason) == (Usage(len("hold it"), 3), None)


async def test_who_cancels_in_a_loop_never_has_more_in_the_engine_than_its_slots(
    service: Service,
) -> None:
    """A cancel is final at once, and its slot is free only when the engine has let go of it; each is told."""
    engine = ScriptedEngine(slots=2)
    rids = []
    async with service.worker(engine):
        for i in range(12):
            rids.append(await service.submit(f"hold {i}"))
            rids.append(await service.submit(f"hold {i} too"))
            await until(lambda: len(engine.running_texts) == 2)
            await asyncio.gather(*map(service.producer.cancel, rids[-2:]))
            assert len(engine.running_texts) <= 2
        await until(lambda: not engine.running_texts)
        async with asyncio.timeout(10):
            while True:
                answers = await service.producer.answers(rids)
                if all(answer and answer.outcome.report_json for answer in answers):
                    break
                await asyncio.sleep(0.02)
    assert all(answer and answer.outcome.report.usage.completion_tokens == 3 for answer in answers)


async def test_a_finished_answer_outlasts_a_broker_whose_disk_fails(
    queue_name: str, tmp_path: Path
) -> None:
    gone = tmp_path / "disk"
    gone.mkdir()
    server = Server(extra=("--enable-protected-configs", "yes")).start()
    client: Any = redis.Redis.from_url(server.url)
    service = Service(server.url, queue_name)
    await service.producer.start()

    def saves(status: str) -> bool:
        info = client.info("persistence")
        return bool(info["rdb_last_bgsave_status"] == status and not info["rdb_bgsave_in_progress"])

    try:
        engine = ScriptedEngine()
        rid = await service.submit("hold it")
        async with service.worker(engine):
            await until(lambda: "hold it" in engine.running_texts)
            client.config_set("dir", str(gone))
            gone.rmdir()
            client.config_set("save", "3600 1")
            client.bgsave()
            await until(lambda: saves("err"))
            with pytest.raises(BrokerUnavailable, match="takes no writes"):
                await service.submit("another")
            refused = client.info("errorstats")["errorstat_MISCONF"]["count"]
            engine.let_go()
            await until(
                lambda: client.info("errorstats")["errorstat_MISCONF"]["count"] > refused + 2
            )
            client.config_set("dir", str(server.folder))
            client.bgsave()
            answer = await service.producer.wait(rid, 15)
    finally:
        await service.close()
        client.close()
        server.stop()
        server.clean()
    assert (answer.outcome.status, answer.outcome.crashes) == ("finished", 0)
    assert engine.calls == [["hold it"]]


async def test_an_unreadable_record_is_ended_and_the_worker_lives(service: Service) -> None:
    rid = await service.submit("newer", v=99)
    async with service.worker(ScriptedEngine()):
        answer = await service.producer.wait(rid, 10)
        assert answer.outcome.code == "bad_record"
        assert (await service.ask("fine")).body is not None


class Reaper:
    """What a housekeeper of another process does, in a thread with a connection of its own."""

    def __init__(self, service: Service) -> None:
        self._client: Any = redis.Redis.from_url(service.settings.redis_url)
        self._scripts = Scripts(Keys(service.settings.queue_name))
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.looks = 0
        self.moved = 0

    def __enter__(self) -> Reaper:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()
        self._client.close()

    def _run(self) -> None:
        while not self._is_over.wait(0.2):
            reply = self._client.execute_command(*self._scripts.reap(100, 2, 5).loading_command)
            self.looks += 1
            self.moved += reply[0]


async def test_leases_outlive_a_blocked_event_loop(service: Service) -> None:
    """The front door of this process stands still too, so that another one looks for dead leases meanwhile."""
    engine = ScriptedEngine()
    async with service.worker(engine):
        rid = await service.submit("hold tight")
        await until(lambda: "hold tight" in engine.running_texts)
        await asyncio.sleep(0.2)
        with Reaper(service) as reaper:
            time.sleep(4)  # noqa: ASYNC251 - twice the lease, on purpose
        assert reaper.looks >= 10
        assert reaper.moved == 0
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


async def test_no_more_is_claimed_than_there_are_slots(service: Service) -> None:
    engine = ScriptedEngine(slots=2)
    for i in range(5):
        await service.submit(f"hold {i}")
    async with service.worker(engine):
        await until(lambda: len(engine.running_texts) == 2)
        stats = await service.producer.stats()
        assert (stats.running, stats.queued) == (2, 3)
        engine.let_go()
        await until(lambda: sum(map(len, engine.calls)) == 5)


async def test_what_a_claims_byte_limit_left_is_claimed_at_once(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("worker.loop.BELL_S", 60.0)  # no time-out comes to help
    ids = [await service.submit("x" * (3 << 20)) for _ in range(3)]
    async with service.worker(ScriptedEngine()):
        answers = [await service.producer.wait(rid, 15) for rid in ids]
    assert [answer.outcome.code for answer in answers] == ["prompt_too_long"] * 3


async def test_a_bell_that_rings_during_a_claim_is_heard(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("worker.loop.BELL_S", 60.0)
    late: list[str] = []

    class Slow(Consumer):
        """The first claim that finds something comes back only after the bell has rung once more."""

        async def claim(self, n: int, **options: Any) -> Claimed:
            claimed = await super().claim(n, **options)
            if claimed.grants and not late:
                late.append(await service.submit("late"))
            return claimed

    first = await service.submit("first")
    async with service.worker(ScriptedEngine(), consumer_type=Slow):
        assert (await service.producer.wait(first, 10)).body is not None
        assert (await service.producer.wait(late[0], 10)).body is not None


async def test_a_busy_worker_empties_itself_for_suspects(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("worker.loop.SUSPECTS_WAIT_S", 0.2)
    engine = ScriptedEngine()
    suspect = await service.submit("suspect")
    async with service.consumer() as dying:
        claimed = await dying.claim(1, is_idle=True)
        async with service.worker(engine):
            await service.submit("hold work")
            await until(lambda: "hold work" in engine.running_texts)
            await dying.suspect(claimed.grants, "its engine died")
            number = 0
            while True:
                later = await service.submit(f"later {number}")
                try:
                    await service.producer.wait(later, 0.5)
                except TimeoutError:
                    break  # the worker takes nothing more
                number += 1
            assert ["suspect"] not in engine.calls
            engine.let_go()
            assert (await service.producer.wait(suspect, 10)).outcome.crashes == 1
            await service.producer.wait(later, 10)
    assert engine.calls.index(["suspect"]) < engine.calls.index([f"later {number}"])


async def test_results_that_wait_for_the_broker_are_no_stall(queue_name: str) -> None:
    server = Server(aof=True).start()
    service = Service(server.url, queue_name)
    await service.producer.start()
    engine = ScriptedEngine()
    stalls: list[float] = []
    try:
        async with service.worker(engine, stall_limit_s=0.5, on_stalled=stalls.append):
            rid = await service.submit("hold through")
            await until(lambda: "hold through" in engine.running_texts)
            server.stop(signal.SIGKILL)
            engine.let_go()
            await until(lambda: not engine.running_texts)
            began = time.monotonic()
            await until(lambda: time.monotonic() - began > 3)
            server.start()
            assert (await service.producer.wait(rid, 20)).outcome.status == "finished"
        assert stalls == []
    finally:
        await service.close()
        server.stop()
        server.clean()
