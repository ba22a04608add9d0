"""Readers that are gone: a held request ends with its front door, every other one goes on without."""

from __future__ import annotations

import asyncio
import time

import pytest
import redis

from shared.errors import BrokerLost
from shared.queue.connection import Connection
from shared.queue.housekeeper import Housekeeper
from tests.queue.harness import LEASE_MS, Shard
from tests.queue.pair import FREE, INFO, Pair, pair_on

RID = "q.0-a"


def tick_for(shard: Shard, ms: int, *apis: str) -> None:
    """Time goes by for these front doors; the others are silent."""
    for _ in range(0, ms, 1000):
        shard.advance(1000)
        for api in apis:
            shard.run(shard.scripts.tick(LEASE_MS, api))


def sweep(shard: Shard) -> list[str]:
    """As the housekeeper: end what is handed out. Returns what that was."""
    due = [rid.decode() for rid in shard.run(shard.scripts.sweep(128))[0]]
    for rid in due:
        if shard.end(rid, "expire")[0] == b"NOTDUE":
            shard.end(rid, "dead")
    return due


def how_it_ended(shard: Shard, rid: str = RID) -> tuple[str, str] | None:
    outcome = shard.outcome(rid)
    return (outcome.state, outcome.code) if outcome else None


def test_a_held_request_in_the_queue_ends_30_s_after_its_front_door_with_no_worker_there(
    shard: Shard,
) -> None:
    shard.api("api")
    shard.submit(RID, api="api", held=True)
    shard.submit("q.0-async", api="api")
    for _ in range(47):
        tick_for(shard, 1000, "api")
        assert sweep(shard) == []
    for _ in range(29):
        tick_for(shard, 1000)
        assert sweep(shard) == []
    tick_for(shard, 1000)
    assert sweep(shard) == [RID]
    assert how_it_ended(shard) == ("C", "client_gone")
    assert shard.grant()[0] == "q.0-async"


def test_those_of_one_front_door_go_in_a_few_rounds_and_those_of_another_stay(
    shard: Shard,
) -> None:
    shard.api("dead")
    shard.api("alive")
    for i in range(400):
        shard.submit(f"q.0-{i:04d}", api="dead", held=True)
    for i in range(150):
        shard.submit(f"q.0-stay{i}", api="alive", held=True)
    tick_for(shard, 31_000, "alive")
    rounds = 0
    while sweep(shard):
        rounds += 1
    assert rounds <= 4
    assert shard.client.hlen(shard.keys.fixed("live")) == 150
    assert shard.client.hget(shard.keys.fixed("stat"), "code:client_gone") == b"400"


def test_claim_hands_out_none_whose_front_door_is_gone(shard: Shard) -> None:
    shard.api("dead")
    shard.api("alive")
    for i in range(5):
        shard.submit(f"q.0-{i}", api="dead", held=True)
    shard.submit(RID, api="alive", held=True)
    tick_for(shard, 31_000, "alive")
    assert [grant[0] for grant in shard.claim(n=3)[5:]] == [RID.encode()]
    assert sorted(sweep(shard)) == [f"q.0-{i}" for i in range(5)]
    assert how_it_ended(shard, "q.0-3") == ("C", "client_gone")


def test_a_running_one_is_taken_from_its_worker_by_the_next_beat(shard: Shard) -> None:
    shard.api("api")
    shard.submit(RID, api="api", held=True)
    rid, token = shard.grant()
    held = {rid: (token, True)}
    for _ in range(40):
        tick_for(shard, 1000, "api")
        assert shard.beat("w1", held)[3] == []
    for _ in range(29):
        tick_for(shard, 1000)
        assert shard.beat("w1", held)[3] == []
    tick_for(shard, 1000)
    assert shard.beat("w1", held)[3] == [RID.encode()]
    assert shard.finish(rid, token) == [b"LOST"]
    assert shard.emit(rid, token, 0, "x") == ["LOST"]
    assert sweep(shard) == [RID]
    assert how_it_ended(shard) == ("C", "client_gone")
    settled = shard.scripts.settle(rid, "w1", token, '{"usage":{"completion_tokens":3}}', 3)
    assert shard.run(settled) == [b"OK"]


@pytest.mark.parametrize("reader", ["other", ""])
def test_another_reader_or_a_caller_that_is_promised_the_answer_keeps_it(
    shard: Shard, reader: str
) -> None:
    shard.api("api")
    shard.api("other")
    shard.submit(RID, api="api", held=True)
    assert shard.attach(RID, reader) == ["OK"]
    tick_for(shard, 120_000, "other")
    assert sweep(shard) == []
    assert shard.grant()[0] == RID


def test_a_front_door_that_was_silent_for_less_is_there(shard: Shard) -> None:
    shard.api("api")
    shard.submit(RID, api="api", held=True)
    for _ in range(4):
        tick_for(shard, 29_000)
        assert sweep(shard) == []
        shard.run(shard.scripts.tick(LEASE_MS, "api"))
    assert shard.grant()[0] == RID


def test_where_the_broker_came_back_empty_the_next_tick_is_waited_for(shard: Shard) -> None:
    shard.api("api")
    shard.client.delete(shard.keys.fixed("apis"))
    shard.submit(RID, api="api", held=True)
    tick_for(shard, 29_000)
    assert sweep(shard) == []
    assert shard.grant()[0] == RID


def test_a_pause_of_the_broker_makes_no_reader_gone(shard: Shard) -> None:
    shard.api("api")
    shard.submit(RID, api="api", held=True)
    tick_for(shard, 31_000, "api")
    for _ in range(3):
        shard.scripts.at_ms += 60_000
        shard.run(shard.scripts.tick(LEASE_MS))
        assert sweep(shard) == []
    assert shard.grant()[0] == RID


def test_a_held_one_in_the_queue_still_ends_at_its_own_time(shard: Shard) -> None:
    shard.api("api")
    shard.submit(RID, api="api", held=True, queue_timeout_ms=45_000)
    tick_for(shard, 44_000, "api")
    assert sweep(shard) == []
    tick_for(shard, 2000, "api")
    assert sweep(shard) == [RID]
    assert how_it_ended(shard) == ("E", "expired")


def test_children_of_a_held_list_go_with_it(shard: Shard) -> None:
    shard.api("api")
    scripts, parent = shard.scripts, "q.0-list"
    meta = [1, "anonymous", 0, 600_000, 600_000, "api", "{}", "", [], "", "", 0, 1, 1]
    shard.run(scripts.reserve(parent, 3, 3, "anonymous", "d", "api", "{}", (0, 0, 0, 0)))
    shard.run(scripts.submit_many(parent, 0, meta, [(b"p", 1, "{}")] * 3))
    tick_for(shard, 31_000)
    assert sorted(sweep(shard)) == [f"{parent}.{i}" for i in range(3)]
    outcome = shard.outcome(parent)
    assert outcome is not None
    assert outcome.n_children == 3


def test_front_doors_that_are_no_more_are_forgotten(shard: Shard) -> None:
    for i in range(20):
        shard.api(f"api{i}")
    tick_for(shard, 400_000, "api7")
    shard.api("new")
    assert set(shard.client.hgetall(shard.keys.fixed("apis"))) == {b"api7", b"new"}


async def test_a_thousand_callers_of_a_front_door_that_was_killed_cost_no_worker_anything(
    pair: Pair, broker_url: str
) -> None:
    queue = pair.settings.queue_name
    async with pair_on(broker_url, queue) as other:
        producer = other.producer
        running, kept = other.req("running"), other.req("kept")
        for req in (running, kept):
            await producer.submit(req, FREE, watch=True, held=True)
        grants = (await pair.consumer.claim(1, is_idle=True)).grants
        waiting = [other.req(str(i)) for i in range(1000)]
        await asyncio.gather(*(producer.submit(r, FREE, watch=True, held=True) for r in waiting))
        later = [other.req(f"later {i}") for i in range(5)]
        await asyncio.gather(*(producer.submit(r, FREE, watch=True) for r in later))
        await producer.carry_on([kept.id])
        for task in producer._tasks:
            task.cancel()
        let_time_pass(broker_url, queue, 32)
        held = {grant.id: (grant.token, True) for grant in grants}
        assert (await asyncio.to_thread(pair.consumer.beat, held, INFO)).lost == [running.id]
        granted: list[str] = []
        async with asyncio.timeout(10):
            # A claim looks at some hundred heads, so the first ones find none that is wanted.
            while len(granted) < 6:
                claimed = await pair.consumer.claim(64, is_idle=True)
                granted += [grant.id for grant in claimed.grants]
        assert sorted(granted) == sorted(req.id for req in (kept, *later))
        async with asyncio.timeout(10):
            while (await pair.producer.stats()).live > len(granted):
                await asyncio.sleep(0.05)
        answers = await pair.producer.answers([req.id for req in (running, *waiting)])
        outcomes = {(a.outcome.status, a.outcome.code) for a in answers if a is not None}
        assert outcomes == {("cancelled", "client_gone")}


async def test_who_reads_along_is_told_that_the_client_left_by_itself(pair: Pair) -> None:
    req = pair.req()
    await pair.producer.submit(req, FREE, watch=True, held=True)
    assert await pair.producer.attach(req.id) is not None
    pair.producer.unwatch(req.id)
    await pair.producer.cancel(req.id, code="client_gone", message="its client left")
    outcome = (await pair.producer.wait(req.id, 10)).outcome
    assert (outcome.status, outcome.code, outcome.message) == (
        "cancelled",
        "client_gone",
        "its client left",
    )


async def test_where_all_front_doors_were_away_each_tells_its_own(
    pair: Pair, broker_url: str
) -> None:
    """Who asked is told to ask again; who only reads along, what became of it."""
    queue = pair.settings.queue_name
    async with pair_on(broker_url, queue) as other:
        req = other.req()
        await other.producer.submit(req, FREE, watch=True, held=True)
        assert await pair.producer.attach(req.id) is not None
        for task in (*pair.producer._tasks, *other.producer._tasks):
            task.cancel()
        let_time_pass(broker_url, queue, 32)
        await keep_house(pair)
        await pair.producer.start()
        await other.producer.start()
        outcome = (await pair.producer.wait(req.id, 10)).outcome
        assert (outcome.status, outcome.code) == ("cancelled", "client_gone")
        with pytest.raises(BrokerLost, match="this front door was away for too long"):
            await other.producer.wait(req.id, 10)


async def keep_house(pair: Pair) -> None:
    """As a worker does beside its work."""
    connection = Connection.open(pair.settings)
    await Housekeeper(connection, pair.settings).once()
    await connection.close()


def let_time_pass(url: str, queue: str, seconds: int) -> None:
    """On the queue clock, for which steps of up to 5 s are no pause of the broker's."""
    client = redis.Redis.from_url(url)
    shard = Shard(client, queue)
    shard.scripts.at_ms = int(time.time() * 1000)
    for _ in range(0, seconds, 4):
        shard.scripts.at_ms += 4000
        shard.run(shard.scripts.tick(LEASE_MS))
    client.close()
