"""The shard is set back to an earlier moment, as a failover does that loses the last writes."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest
import redis

from shared.queue.assembler import Reset, Text
from shared.queue.claiming import Grant
from shared.queue.connection import Connection
from shared.queue.consumer import Consumer, Finished
from shared.queue.keys import Keys
from shared.queue.streams import Event
from shared.request import Body, FinishReason, Report
from tests.queue.harness import LEASE_MS, Shard
from tests.queue.pair import FREE, Pair, until

Saved = Mapping[bytes, tuple[bytes, int]]


def save(client: Any, keys: Keys) -> Saved:
    """Every key of the shard: what it holds and how long it lives, 0 for ever."""
    names = list(client.scan_iter(f"{keys.prefix}*", 1000))
    return {name: (client.dump(name), max(client.pttl(name), 0)) for name in names}


def set_back(client: Any, keys: Keys, saved: Saved) -> None:
    pipe = client.pipeline()
    pipe.delete(*client.scan_iter(f"{keys.prefix}*", 1000))
    for name, (value, ttl_ms) in saved.items():
        pipe.restore(name, ttl_ms, value)
    pipe.execute()


def check_refused(shard: Shard, rid: str, wid: str, token: str) -> None:
    """Whatever its worker does with it."""
    assert shard.beat(wid, {rid: (token, True)})[3] == [rid.encode()]
    assert shard.emit(rid, token, 0, "text", wid) == ["LOST"]
    assert shard.nack("release", rid, token, wid) == [b"LOST"]
    assert shard.finish(rid, token, wid)[0] in (b"LOST", b"GONE")


def test_what_was_handed_out_in_the_lost_time_is_refused(shard: Shard) -> None:
    shard.api("a")
    shard.submit("q.0-running", api="a")
    _, kept = shard.grant("w1")
    shard.start("q.0-running", kept, "w1")
    shard.submit("q.0-queued", api="a")
    saved = save(shard.client, shard.keys)

    lost = {"q.0-queued": ("w2", shard.grant("w2")[1])}
    shard.submit("q.0-new", api="a")
    lost["q.0-new"] = ("w3", shard.grant("w3")[1])
    shard.advance(LEASE_MS + 1000)
    assert shard.reap()[0] == 3
    for rid in ("q.0-new", "q.0-queued"):
        shard.end(rid, "cancel")
    rid, token = shard.grant("w4")
    lost[rid] = ("w4", token)
    shard.finish(rid, token, "w4")
    assert lost.keys() == {"q.0-queued", "q.0-new", "q.0-running"}

    set_back(shard.client, shard.keys, saved)
    shard.run(shard.scripts.tick(LEASE_MS, "a"))
    for rid, (wid, token) in lost.items():
        check_refused(shard, rid, wid, token)
    assert [shard.state(rid) for rid in lost] == ["Q", None, "R"]
    assert shard.notices("a") == []

    # Handed out anew, to one who had nothing of it and to one who had: what was lost is not taken for either.
    wid, token = lost["q.0-queued"]
    for other in ("w5", "w2"):
        rid, fresh = shard.grant(other)
        assert (rid, other, fresh) != ("q.0-queued", wid, token)
        check_refused(shard, rid, wid, token)
        shard.nack("release", rid, fresh, other)
    # What was handed out before stays good.
    assert shard.finish("q.0-running", kept, "w1")[0] == b"OK"
    assert shard.notices("a") == ["q.0-running"]


async def test_the_first_answer_that_was_delivered_stays(
    pair: Pair, queue_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the broker forgot is submitted again by who waits for it, and what was told is never told otherwise."""
    monkeypatch.setattr("shared.queue.producer.RECONCILE_AFTER_S", 0.2)
    client: Any = redis.Redis.from_url(pair.settings.redis_url)
    keys = Keys(queue_name)
    connection = Connection.open(pair.settings)
    other = Consumer(connection, pair.settings, worker_id="other")
    try:
        req = pair.req("x")
        await pair.producer.submit(req, FREE, watch=True)
        grant = await pair.claimed()
        saved = save(client, keys)
        late = pair.req("late")
        await pair.producer.submit(late, FREE, watch=True)
        assert await pair.finish(grant, "answer 1") is Finished.OK
        assert (await pair.producer.wait(req.id, 5)).body == Body(text="answer 1")

        set_back(client, keys, saved)
        await pair.consumer.release([grant])
        grants: dict[str, Grant] = {}
        while len(grants) < 2:
            await other.wait_for_work(0.1, wants_work=True)
            claimed = (await other.claim(2, is_idle=True)).grants
            grants |= {grant.id: grant for grant in claimed}
        assert set(grants) == {req.id, late.id}
        for rid, text in ((req.id, "answer 2"), (late.id, "after it")):
            report = Report(finish_reason=FinishReason.stop)
            assert await other.finish(grants[rid], report, Body(text=text)) is Finished.OK
        # Notices come in their order, so that of the second answer has come when this one has.
        assert (await pair.producer.wait(late.id, 5)).body == Body(text="after it")
        stored = await pair.producer.answer(req.id)
        assert stored is not None
        assert stored.body == Body(text="answer 2")
        assert (await pair.producer.wait(req.id, 5)).body == Body(text="answer 1")
    finally:
        client.close()
        other.close_beats()
        await connection.close()


async def test_a_reader_never_gets_two_runs_in_one_text(pair: Pair, queue_name: str) -> None:
    """Both are the first attempt, of workers that began alike: only the token tells their texts apart."""
    client: Any = redis.Redis.from_url(pair.settings.redis_url)
    keys = Keys(queue_name)
    connection = Connection.open(pair.settings)
    other = Consumer(connection, pair.settings, worker_id="other")
    told: list[Event] = []  # as it grows, so that it can be looked at

    async def read(rid: str) -> None:
        async for event in pair.producer.stream(rid):
            told.append(event)  # noqa: PERF401

    try:
        req = pair.req("x")
        await pair.producer.submit(req, FREE, watch=True)
        saved = save(client, keys)
        reading = asyncio.ensure_future(read(req.id))
        lost = await pair.claimed()
        await pair.say(pair.consumer.emission(lost), "once upon a ")
        await until(lambda: told == [Text(1, 0, "once upon a ")])

        set_back(client, keys, saved)
        (grant,) = (await other.claim(1, is_idle=True)).grants
        text = "In the beginning was the word"
        report = Report(finish_reason=FinishReason.stop)
        assert await other.finish(grant, report, Body(text=text)) is Finished.OK
        await asyncio.wait_for(reading, 10)
        assert told[1:3] == [Reset(1), Text(1, 0, text)]
        assert await pair.finish(lost, "once upon a time") is Finished.LOST
    finally:
        client.close()
        other.close_beats()
        await connection.close()
