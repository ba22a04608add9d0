"""Beats: when they are made, what they keep alive, and when they stop. The stall watch has its clock as an argument."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

from shared.queue.connection import Connection
from shared.queue.consumer import BeatReply, Consumer
from shared.worker_info import WorkerInfo, WorkerState
from tests.worker.serving import Service, until
from worker.leases import Leases, StallWatch

INFO = WorkerInfo(id="w", state=WorkerState.READY)


class Counting(Consumer):
    """A real consumer that remembers what was beaten."""

    beats: list[dict[str, tuple[str, bool]]]

    def beat(self, held: Mapping[str, tuple[str, bool]], info: WorkerInfo) -> BeatReply:
        reply = super().beat(held, info)
        self.beats.append(dict(held))
        return reply


@asynccontextmanager
async def leases_of(
    service: Service, on_reply: Callable[[BeatReply], None] = lambda reply: None, **options: Any
) -> AsyncIterator[tuple[Counting, Leases]]:
    connection = Connection.open(service.settings)
    consumer = Counting(connection, service.settings, worker_id="w")
    consumer.beats = []
    leases = Leases(
        consumer,
        **{
            "info": lambda: INFO,
            "progress": lambda: 0,
            "stall_limit_s": 60.0,
            "on_reply": on_reply,
            "on_stalled": lambda seconds: None,
            **options,
        },
    )
    leases.start()
    yield consumer, leases
    await leases.stop()
    await connection.close()


async def test_a_claim_outlives_its_lease_while_it_is_held(service: Service) -> None:
    rid = await service.submit("x")
    async with leases_of(service) as (consumer, leases):
        leases.hold((await consumer.claim(1, is_idle=True)).grants)
        await asyncio.sleep(service.settings.lease_s * 1.8)
        assert (await service.record(rid)).worker == consumer.name


async def test_a_start_is_told_at_once(service: Service) -> None:
    rid = await service.submit("x")
    async with leases_of(service) as (consumer, leases):
        await until(lambda: len(consumer.beats) == 1)
        grants = (await consumer.claim(1, is_idle=True)).grants
        leases.hold(grants)
        leases.mark_started(grants)
        await until(lambda: len(consumer.beats) == 2, 0.5)
        assert consumer.beats[1] == {rid: (grants[0].token, True)}
        assert (await service.record(rid)).started_ms > 0


async def test_what_ends_at_once_costs_no_beat(service: Service) -> None:
    await service.submit("x")
    async with leases_of(service) as (consumer, leases):
        await until(lambda: len(consumer.beats) == 1)
        grants = (await consumer.claim(1, is_idle=True)).grants
        until_s = time.monotonic() + 0.6
        while time.monotonic() < until_s:
            leases.hold(grants)
            leases.mark_started(grants)
            leases.drop(grants[0])
            await asyncio.sleep(0.001)
        assert len(consumer.beats) <= 4  # each that was made met one in its few microseconds


async def test_a_load_of_what_ends_at_once_costs_no_beat(service: Service) -> None:
    """Something has just begun at every moment, and a beat for it would come fifty times a second."""
    for text in ("x", "y"):
        await service.submit(text)
    async with leases_of(service) as (consumer, leases):
        await until(lambda: len(consumer.beats) == 1)
        before, now = (await consumer.claim(2, is_idle=True)).grants
        until_s = time.monotonic() + 0.6
        while time.monotonic() < until_s:
            leases.hold([now])
            leases.mark_started([now])
            leases.drop(before)
            await asyncio.sleep(0.004)
            before, now = now, before
        assert len(consumer.beats) <= 8  # with those of a machine that stood still


async def test_an_older_claim_of_a_request_cannot_drop_the_newer_one(service: Service) -> None:
    rid = await service.submit("x")
    async with leases_of(service) as (consumer, leases):
        old = (await consumer.claim(1, is_idle=True)).grants
        leases.hold(old)
        await consumer.release(old)
        new = (await consumer.claim(1, is_idle=True)).grants
        leases.hold(new)
        leases.drop(old[0])
        consumer.beats.clear()
        leases.beat_now()
        await until(lambda: len(consumer.beats) > 0)
        assert consumer.beats[-1] == {rid: (new[0].token, False)}
        assert new[0].token != old[0].token


async def test_a_loss_is_told_once_it_is_known_and_only_of_what_is_held(service: Service) -> None:
    replies: list[BeatReply] = []
    rid = await service.submit("x")
    async with leases_of(service, replies.append) as (consumer, leases):
        grants = (await consumer.claim(1, is_idle=True)).grants
        leases.hold(grants)
        await service.producer.cancel(rid)
        leases.beat_now()
        await until(lambda: any(reply.lost == [rid] for reply in replies))
        leases.drop(grants[0])
        replies.clear()
        consumer.beats.clear()
        leases.beat_now()
        await until(lambda: len(consumer.beats) > 0)
        assert replies == []


async def test_a_grant_that_nobody_holds_is_told_as_an_orphan(
    broker_url: str, queue_name: str
) -> None:
    replies: list[BeatReply] = []
    service = Service(broker_url, queue_name)  # its lease is longer than the orphan's grace
    rid = await service.submit("x")
    async with leases_of(service, replies.append) as (consumer, _):
        grants = (await consumer.claim(1, is_idle=True)).grants
        await until(lambda: any(r.orphaned == [(rid, grants[0].token)] for r in replies))
    await service.close()


async def test_a_stalled_engine_keeps_no_lease_and_its_end_is_told(service: Service) -> None:
    stalls: list[float] = []
    rid = await service.submit("x")
    async with leases_of(service, stall_limit_s=0.5, on_stalled=stalls.append) as (
        consumer,
        leases,
    ):
        grants = (await consumer.claim(1, is_idle=True)).grants
        leases.hold(grants)
        leases.mark_started(grants)
        await until(lambda: leases.is_stalled)
        await until(lambda: len(stalls) > 1)
        assert consumer.beats[-1] == {}
        assert stalls[0] < stalls[-1]

        async def is_taken_back() -> bool:
            return (await service.record(rid)).crashes == 1

        async with asyncio.timeout(15):
            while not await is_taken_back():
                await asyncio.sleep(0.1)


async def test_a_result_that_waits_to_be_stored_is_no_stall(service: Service) -> None:
    await service.submit("x")
    async with leases_of(service, stall_limit_s=0.5) as (consumer, leases):
        grants = (await consumer.claim(1, is_idle=True)).grants
        leases.hold(grants)
        leases.mark_started(grants)
        leases.mark_ended(grants[0])
        consumer.beats.clear()
        await until(lambda: len(consumer.beats) >= 3)
        assert not leases.is_stalled
        assert list(consumer.beats[-1]) == [grants[0].id]


def test_an_idle_engine_is_never_stalled() -> None:
    watch = StallWatch(60)
    assert not watch.is_stalled(0, 5, has_running=False)
    assert not watch.is_stalled(1_000, 5, has_running=False)


def test_running_without_progress_is_a_stall_after_the_limit() -> None:
    watch = StallWatch(60)
    assert not watch.is_stalled(0, 5, has_running=True)
    assert not watch.is_stalled(59.9, 5, has_running=True)
    assert watch.is_stalled(60, 5, has_running=True)
    assert not watch.is_stalled(61, 6, has_running=True)
    assert not watch.is_stalled(120, 6, has_running=True)


def test_waiting_idle_does_not_count_towards_the_limit() -> None:
    watch = StallWatch(60)
    watch.is_stalled(0, 5, has_running=False)
    assert not watch.is_stalled(500, 5, has_running=False)
    assert not watch.is_stalled(559, 5, has_running=True)
