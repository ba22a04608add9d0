"""Several shards behave as one queue: requests spread over them, and every call finds its own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from shared.errors import BrokerUnavailable, QueueFull
from shared.queue.consumer import Room
from shared.queue.shards import Shards
from shared.queue.snapshot import Caps
from shared.request import queue_and_shard
from shared.status import ReqStatus
from tests.queue.pair import FREE, INFO, Pair, pair_on, serving, until

N = 3


@pytest.fixture
async def pair(broker_url: str, queue_name: str) -> AsyncIterator[Pair]:
    async with pair_on(broker_url, queue_name, shards=N) as pair:
        yield pair


def place(rid: str) -> int:
    found = queue_and_shard(rid)
    assert found is not None
    return found[1]


async def test_requests_spread_over_the_shards_and_all_are_answered(pair: Pair) -> None:
    reqs = [pair.req(f"p{i}") for i in range(30)]
    assert sorted(place(req.id) for req in reqs) == [0] * 10 + [1] * 10 + [2] * 10
    async with serving(pair):
        for req in reqs:
            await pair.producer.submit(req, FREE, watch=True)
        answers = await asyncio.gather(*(pair.producer.wait(req.id, 10) for req in reqs))
    assert [a.body.text if a.body else None for a in answers] == [f"A(p{i})" for i in range(30)]


async def test_one_claim_takes_from_every_shard_and_no_more_than_it_asked_for(pair: Pair) -> None:
    for i in range(9):
        await pair.producer.submit(pair.req(str(i)), FREE)
    first = await pair.consumer.claim(5, is_idle=True)
    assert len(first.grants) == 5
    assert first.remaining >= 1
    second = await pair.consumer.claim(8, is_idle=False)
    assert len(second.grants) == 4
    assert second.remaining == 0
    assert {place(g.id) for g in (*first.grants, *second.grants)} == {0, 1, 2}


async def test_what_a_lost_reply_held_counts_for_the_next_claim_before_other_shards_are_asked(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    for i in range(3 * 5):
        await pair.producer.submit(pair.req(str(i)), FREE)
    run = pair.consumer._line.run

    async def lose(call: Any, *, patient: bool = False) -> Any:
        await run(call)
        raise BrokerUnavailable("the reply was lost", retry_after_s=1)

    monkeypatch.setattr(pair.consumer._line, "run", lose)
    with pytest.raises(BrokerUnavailable):
        await pair.consumer.claim(6, is_idle=True)
    monkeypatch.setattr(pair.consumer._line, "run", run)
    claimed = await pair.consumer.claim(6, is_idle=True)
    assert len(claimed.grants) == 6
    assert (await pair.producer.stats()).running == 6


@pytest.mark.parametrize("asked_shards", range(N + 1))
async def test_a_claim_that_is_cancelled_between_two_shards_loses_no_grant(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, asked_shards: int
) -> None:
    for i in range(6):
        await pair.producer.submit(pair.req(str(i)), FREE)
    run, sent = pair.consumer._line.run, []

    def count(call: Any, *, patient: bool = False) -> asyncio.Future[Any]:
        sent.append(call)
        if len(sent) > asked_shards:
            claiming.cancel()
        return run(call, patient=patient)

    monkeypatch.setattr(pair.consumer._line, "run", count)
    claiming = asyncio.create_task(pair.consumer.claim(6, is_idle=True))
    (first,) = await asyncio.gather(claiming, return_exceptions=True)
    assert isinstance(first, asyncio.CancelledError) == (asked_shards < N)
    second = await pair.consumer.claim(6, is_idle=True)
    grants = second.grants if isinstance(first, BaseException) else first.grants
    assert len({grant.id for grant in grants}) == len(grants) == 6


async def test_a_shard_that_fails_does_not_withhold_what_another_gave(pair: Pair) -> None:
    for _ in range(2 * N):
        await pair.producer.submit(pair.req(), FREE)
    line, broken = pair.producer._line, pair.consumer._shards[1].keys.fixed("wk")
    await line.run(("DEL", broken))
    await line.run(("SET", broken, "no hash"))
    claimed = await pair.consumer.claim(2 * N, is_idle=True)
    assert sorted(place(grant.id) for grant in claimed.grants) == [0, 0, 2, 2]
    await line.run(("DEL", broken))


async def test_a_list_lies_in_one_shard(pair: Pair) -> None:
    for _ in range(N):
        parent = pair.req()
        await pair.producer.submit_list(parent, pair.children(parent, 4), FREE)
    claimed = await pair.consumer.claim(64, is_idle=True)
    by_parent = {g.id.rpartition(".")[0]: place(g.id) for g in claimed.grants}
    assert len(claimed.grants) == 12
    assert sorted(by_parent.values()) == [0, 1, 2]
    await asyncio.gather(*map(pair.answer, claimed.grants))
    for parent_id in by_parent:
        snapshot = await pair.producer.peek(parent_id)
        assert snapshot is not None
        assert snapshot.outcome is not None
        assert snapshot.outcome.status is ReqStatus.FINISHED


async def test_a_cancel_reaches_a_running_request_of_any_shard(pair: Pair) -> None:
    reqs = [pair.req() for _ in range(N)]
    for req in reqs:
        await pair.producer.submit(req, FREE)
    assert len((await pair.consumer.claim(N, is_idle=True)).grants) == N
    for req in reqs:
        await pair.producer.cancel(req.id)
    ended: list[str] = []
    while len(ended) < N:
        ended += (await pair.consumer.wait_for_work(5, wants_work=True)).ended
    assert sorted(ended) == sorted(req.id for req in reqs)


async def test_a_bell_of_another_shard_than_the_one_of_the_claim_asks_for_more(pair: Pair) -> None:
    """The claim that waits along is for one shard; what it cannot have seen is claimed apart."""
    room = Room(N, is_idle=True, slots=N)
    left = {req.id: req for req in (pair.req() for _ in range(N))}
    shards_rung = set()
    for req in list(left.values()):
        waiting = asyncio.ensure_future(pair.consumer.wait_for_work(5, wants_work=True, room=room))
        await pair.producer.submit(req, FREE)
        news = await waiting
        grants = list(news.claimed.grants) if news.claimed is not None else []
        if not news.is_all:
            grants += (await pair.consumer.claim(N, is_idle=True)).grants
        assert [grant.id for grant in grants] == [req.id]
        shards_rung.add((pair.producer.shard_of(req.id), news.is_all))
        await pair.answer(grants[0])
    assert {is_all for _, is_all in shards_rung} == {True, False}


async def test_a_beat_renews_in_every_shard_and_tells_what_was_lost(pair: Pair) -> None:
    reqs = [pair.req() for _ in range(N)]
    for req in reqs:
        await pair.producer.submit(req, FREE)
    grants = (await pair.consumer.claim(N, is_idle=True)).grants
    held = {g.id: (g.token, True) for g in grants}
    assert (await asyncio.to_thread(pair.consumer.beat, held, INFO)).lost == []
    await pair.producer.cancel(reqs[1].id)
    assert (await asyncio.to_thread(pair.consumer.beat, held, INFO)).lost == [reqs[1].id]
    stats = await pair.producer.stats()
    assert (stats.running, len(stats.workers)) == (2, 1)


async def test_what_is_given_back_is_given_back_in_its_shard(pair: Pair) -> None:
    for _ in range(N):
        await pair.producer.submit(pair.req(), FREE)
    claimed = await pair.consumer.claim(N, is_idle=True)
    await pair.consumer.release(claimed.grants)
    assert (await pair.producer.stats()).redelivered == N
    assert len((await pair.consumer.claim(N, is_idle=True)).grants) == N


async def test_the_bounds_are_shared_out_among_the_shards(pair: Pair) -> None:
    caps = Caps(requests=6)
    for _ in range(6):
        await pair.producer.submit(pair.req(), caps)
    with pytest.raises(QueueFull, match="requests"):
        await pair.producer.submit(pair.req(), caps)


async def test_an_own_id_has_the_same_shard_in_every_process(pair: Pair, broker_url: str) -> None:
    async with pair_on(broker_url, pair.settings.queue_name, shards=N) as other:
        keys = [f"key {i}" for i in range(20)]
        mine = [pair.producer.derived_id("t", "key", key) for key in keys]
        assert mine == [other.producer.derived_id("t", "key", key) for key in keys]
        assert {place(rid) for rid in mine} == {0, 1, 2}
        await pair.producer.submit(pair.req(rid=mine[0]), FREE, owns_id=False)
        again = await other.producer.submit(other.req(rid=mine[0]), FREE, owns_id=False)
        assert again.joined


async def test_a_system_prompt_reaches_every_front_door_whatever_the_shard(
    pair: Pair, broker_url: str
) -> None:
    async with pair_on(broker_url, pair.settings.queue_name, shards=N) as other:
        await other.producer.set_system_prompt("be brief", "me")
        await until(lambda: pair.producer.known_system_prompt == ("be brief", 1))


async def test_a_worker_that_leaves_is_forgotten_in_every_shard(pair: Pair) -> None:
    await asyncio.to_thread(pair.consumer.beat, {}, INFO)
    assert len((await pair.producer.stats()).workers) == 1
    await pair.consumer.leave()
    assert (await pair.producer.stats()).workers == ()


async def test_a_worker_set_to_fewer_shards_is_complained_of(
    pair: Pair, broker_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    settings = {"shards": N, "lease_s": 2}
    queue = pair.settings.queue_name
    async with (
        pair_on(broker_url, queue, shards=1) as fewer,
        pair_on(broker_url, queue, **settings) as front,
    ):
        async with asyncio.timeout(10):
            while "no worker serves" not in caplog.text:
                await asyncio.to_thread(fewer.consumer.beat, {}, INFO)
                await front.producer.stats()
                await asyncio.sleep(0.05)
    assert "no worker serves shards [1, 2]" in caplog.text


def test_an_id_of_a_shard_or_queue_that_is_not_here_is_unknown() -> None:
    shards = Shards("q", 2)
    assert shards.holds("q.1-abc")
    assert shards.holds("q.0-abc.7")
    for rid in ("q.2-abc", "r.0-abc", "q.0", "mine", ""):
        assert not shards.holds(rid)
    with pytest.raises(KeyError):
        shards.of("q.2-abc")
