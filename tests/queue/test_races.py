"""Two at once on one request, over both halves: cancel and finish, submit and submit, an end and a lost connection."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import redis

from shared import codec
from shared.errors import IdempotencyMismatch
from shared.queue.consumer import Finished
from shared.queue.keys import Keys
from shared.queue.loader import load
from shared.queue.scripts import Call
from shared.request import Body
from tests.queue.harness import LETTERS_MAX_BYTES, NO_CAPS, TTL_MS, Shard
from tests.queue.pair import FREE, INFO, Pair, pair_on, serving, until
from tests.queue.proxy import proxy_to
from tests.valkey_server import Server


async def test_cancel_and_finish_at_once_have_one_outcome_that_both_are_told(pair: Pair) -> None:
    """Many rounds, since either may come first."""
    rng = random.Random(1)
    ends = {"finished": 0, "cancelled": 0}

    async def after(delay_s: float, doing: Any) -> Any:
        if delay_s:
            await asyncio.sleep(delay_s)
        return await doing

    async def once() -> None:
        req = pair.req("x")
        await pair.producer.submit(req, FREE, watch=True)
        grant = await pair.claimed()
        first, second = rng.choice(((0.0, 0.0), (0.0, 0.0005), (0.0005, 0.0)))
        finished, snapshot = await asyncio.gather(
            after(first, pair.answer(grant)), after(second, pair.producer.cancel(req.id))
        )
        told = (await pair.producer.wait(req.id, 5)).outcome.status
        pair.producer.unwatch(req.id)
        assert snapshot.outcome.status == told
        assert finished is (Finished.OK if told == "finished" else Finished.LOST)
        stored = await pair.producer.answer(req.id)
        assert stored is not None
        assert stored.outcome.status == told
        ends[told] += 1

    for _ in range(200):
        await once()
    assert min(ends.values()) > 0, ends
    assert (await pair.producer.stats()).live == 0


def test_ten_thousand_cancels_and_finishes_at_once_have_one_winner_each(shard: Shard) -> None:
    """The scripts alone, each kind on a connection of its own."""
    shard.api("a")
    for name in ("submit", "finish", "end"):
        shard.client.script_load(load(name).source)
    rids = [f"q.0-{n}" for n in range(10_000)]
    meta = [1, "t", 1, 600_000, 600_000, "a", "{}", "d", [], "", "", 0, 1, 0]
    run_all(shard.client, [shard.scripts.submit(rid, b"x", meta, NO_CAPS) for rid in rids])
    tokens: dict[str, str] = {}
    while len(tokens) < len(rids):
        grants = shard.claim("w", 500, slots=10_000)[5:]
        tokens |= {grant[0].decode(): grant[1].decode() for grant in grants}
    how = ("F", "", "", "{}", None, TTL_MS, TTL_MS, 0, ["a"], "")
    most = LETTERS_MAX_BYTES
    sides = (
        [
            shard.scripts.finish(rid, "w", tokens[rid], *how, letters_max_bytes=most)
            for rid in rids
        ],
        [
            shard.scripts.end(
                rid, "cancel", "cancelled", "", "w", TTL_MS, ["a"], "",
                part_ttl_ms=1000, letters_max_bytes=most,
            )
            for rid in reversed(rids)
        ],
    )  # fmt: skip
    starting = threading.Barrier(2)

    def race(calls: list[Call]) -> list[Any]:
        client = redis.Redis(connection_pool=shard.client.connection_pool)
        starting.wait()
        parts = (calls[start : start + 20] for start in range(0, len(calls), 20))
        return [reply[0] for part in parts for reply in run_all(client, part)]

    with ThreadPoolExecutor(2) as pool:
        finished, cancelled = pool.map(race, sides)
    # They meet somewhere in the middle, however fast each is.
    told = set(zip(finished, reversed(cancelled), strict=True))
    assert told == {(b"OK", b"GONE"), (b"LOST", b"OK")}, "either may come first, and never both"
    raws = shard.client.mget([shard.keys.outcome(rid) for rid in rids])
    states = ["F" if reply == b"OK" else "C" for reply in finished]
    assert [codec.decode_outcome(raw).state for raw in raws] == states
    assert shard.client.hlen(shard.keys.fixed("live")) == 0
    told_of = shard.notices("a")  # the newest, as many as the stream keeps
    assert len(told_of) == len(set(told_of)) > 1000


def run_all(client: Any, calls: Sequence[Call]) -> list[Any]:
    pipe = client.pipeline(transaction=False)
    for call in calls:
        pipe.execute_command(*call.command)
    replies: list[Any] = pipe.execute()
    return replies


@pytest.mark.parametrize("late_ms", [-1, 0])
@pytest.mark.parametrize("first", ["expire", "finish"])
def test_an_expiry_and_a_result_1_ms_before_it_and_just_then_have_one_outcome(
    shard: Shard, first: str, late_ms: int
) -> None:
    """Its worker has 2 s beyond the deadline to end it with the text so far."""
    shard.api("a")
    shard.submit("q.0-a", api="a", timeout_ms=5_000)
    rid, token = shard.grant("w")
    shard.start(rid, token, "w")
    shard.advance(5_000 + 2_000 + late_ms)
    if first == "finish":
        assert shard.finish(rid, token, "w")[0] == b"OK"
    ended = shard.end(rid, "expire")[0]
    if first == "expire":
        assert (shard.finish(rid, token, "w")[0] == b"OK") == (late_ms < 0)
    assert ended == (b"GONE" if first == "finish" else b"NOTDUE" if late_ms < 0 else b"OK")
    outcome = shard.outcome(rid)
    assert outcome is not None
    is_expired = (first, late_ms) == ("expire", 0)
    assert (outcome.state, outcome.code) == (
        ("E", "deadline_exceeded") if is_expired else ("F", "")
    )
    assert shard.notices("a") == [rid]


def test_a_claim_1_ms_before_the_deadline_is_granted_and_none_from_then_on(shard: Shard) -> None:
    for rid in ("q.0-a", "q.0-b"):
        shard.submit(rid, queue_timeout_ms=5_000)
    shard.advance(4_999)
    assert shard.end("q.0-a", "expire") == [b"NOTDUE"]
    assert shard.grant("w")[0] == "q.0-a"
    shard.advance(1)
    assert shard.claim("w")[5:] == []
    assert shard.end("q.0-a", "expire") == [b"NOTDUE"], "it runs, and only its deadline ends it"
    assert shard.end("q.0-b", "expire")[0] == b"OK"


async def test_one_id_submitted_by_two_at_once_is_one_request_and_another_body_is_refused(
    broker_url: str, queue_name: str
) -> None:
    async with pair_on(broker_url, queue_name) as here, pair_on(broker_url, queue_name) as there:
        for i in range(20):
            rid = here.producer.derived_id("t", "idem", str(i))
            same = [here.req("once", rid=rid), there.req("once", rid=rid)]
            first, second = await asyncio.gather(
                here.producer.submit(same[0], FREE, watch=True, owns_id=False),
                there.producer.submit(same[1], FREE, watch=True, owns_id=False),
            )
            assert [first.joined, second.joined].count(True) == 1
            with pytest.raises(IdempotencyMismatch):
                await there.producer.submit(there.req("other", rid=rid, digest="e"), FREE)
            grant = await here.claimed()
            assert await here.answer(grant) is Finished.OK
            assert (await here.consumer.claim(1, is_idle=True)).grants == []
            texts = await asyncio.gather(here.producer.wait(rid, 5), there.producer.wait(rid, 5))
            assert [answer.body for answer in texts] == [Body(text="A(once)")] * 2


async def test_a_connection_lost_just_when_the_notice_comes_loses_no_answer(
    broker: Server, queue_name: str
) -> None:
    async with (
        proxy_to(broker.socket) as proxy,
        pair_on(proxy.url, queue_name) as front,
        pair_on(broker.url, queue_name) as back,
    ):
        for i in range(10):
            req = front.req(str(i))
            await front.producer.submit(req, FREE, watch=True)
            grant = await back.claimed()
            finishing = asyncio.ensure_future(back.answer(grant))
            await asyncio.sleep(0.0005 * (i % 4))
            proxy.cut_all()
            assert await finishing is Finished.OK
            answer = await front.producer.wait(req.id, 8)
            assert answer.body == Body(text=f"A({i})")
            front.producer.unwatch(req.id)


async def test_a_front_door_that_is_killed_leaves_a_stream_that_ends_by_itself(
    broker_url: str, queue_name: str
) -> None:
    """Its 200 waiters are gone; the answers can be had from another, and nothing grows for the dead one."""
    client: Any = redis.Redis.from_url(broker_url)
    async with pair_on(broker_url, queue_name) as killed, pair_on(broker_url, queue_name) as other:
        reqs = [killed.req(str(i)) for i in range(200)]
        await asyncio.gather(*(killed.producer.submit(req, FREE, watch=True) for req in reqs))
        for task in killed.producer._tasks:
            task.cancel()
        out = Keys(queue_name).out(killed.producer.api_id)
        assert 0 < client.pttl(out) <= 60_000
        client.delete(out)  # as when that time is over
        async with serving(other):
            await until(lambda: other.producer.waiting == 0)
            async with asyncio.timeout(10):
                while None in (answers := await other.producer.answers([r.id for r in reqs])):
                    await asyncio.sleep(0.05)
        assert client.exists(out) == 0
        assert [a.body for a in answers if a] == [Body(text=f"A({i})") for i in range(200)]
    client.close()


@pytest.mark.parametrize("minutes", [-10, 10])
async def test_the_clocks_of_hosts_do_not_matter(
    broker_url: str, queue_name: str, minutes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every process is set that far from the broker: nothing ends early, nothing is taken back, order holds."""
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + 60 * minutes)
    async with pair_on(broker_url, queue_name, lease_s=2) as pair:
        reqs = [pair.req(str(i), timeout_s=30, queue_timeout_s=30) for i in range(3)]
        for req in reqs:
            await pair.producer.submit(req, FREE, watch=True)
        grants = (await pair.consumer.claim(3, is_idle=True)).grants
        assert [grant.id for grant in grants] == [req.id for req in reqs]
        assert all(25_000 < grant.remaining_ms <= 30_000 for grant in grants)
        held = {grant.id: (grant.token, True) for grant in grants}
        for _ in range(3):
            await asyncio.sleep(0.4)
            assert (await asyncio.to_thread(pair.consumer.beat, held, INFO)).lost == []
        assert [await pair.answer(grant) for grant in grants] == [Finished.OK] * 3
        for req in reqs:
            outcome = (await pair.producer.wait(req.id, 5)).outcome
            assert (outcome.status, outcome.crashes) == ("finished", 0)
