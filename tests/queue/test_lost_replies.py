"""The connection is cut after the server ran a call and before its reply is there; a blocking read at its moment."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import redis

from shared.queue.consumer import Finished, News, Room
from shared.queue.loader import NAMES, load
from shared.request import Body, Report, Usage
from tests.queue.pair import FREE, Pair, pair_on, serving
from tests.queue.proxy import Cut, Fault, Proxy, proxy_to
from tests.valkey_server import Server


@asynccontextmanager
async def pair_behind(broker: Server, queue: str) -> AsyncIterator[tuple[Pair, Proxy]]:
    client: Any = redis.Redis.from_url(broker.url)
    for name in NAMES:
        client.script_load(load(name).source)  # so that no call is sent twice for its script
    client.close()
    async with proxy_to(broker.socket) as proxy, pair_on(proxy.url, queue) as pair:
        yield pair, proxy


def cut_once(proxy: Proxy, name: str) -> None:
    """The next reply to that script is lost, and its connection with it."""
    left = 1

    def on_call(called: str, command: list[bytes]) -> Fault:
        nonlocal left
        if called != name or left == 0:
            return None
        left -= 1
        return Cut.AFTER

    proxy.on_call = on_call


async def test_a_claim_whose_reply_is_lost_grants_the_same_again(
    broker: Server, queue_name: str
) -> None:
    async with pair_behind(broker, queue_name) as (pair, proxy):
        reqs = [pair.req(str(i)) for i in range(5)]
        for req in reqs:
            await pair.producer.submit(req, FREE)
        cut_once(proxy, "claim")
        claimed = await pair.consumer.claim(3, is_idle=True)
        assert proxy.calls.count("claim") == 2
        assert [grant.id for grant in claimed.grants] == [req.id for req in reqs[:3]]
        assert [grant.grants for grant in claimed.grants] == [1, 1, 1]
        stats = await pair.producer.stats()
        assert (stats.running, stats.queued) == (3, 2), "nothing is held for nobody"
        rest = await pair.consumer.claim(3, is_idle=True)
        assert [grant.id for grant in rest.grants] == [req.id for req in reqs[3:]]


async def test_a_finish_whose_reply_is_lost_is_one_outcome_and_one_notice(
    broker: Server, queue_name: str
) -> None:
    async with pair_behind(broker, queue_name) as (pair, proxy):
        req = pair.req("x")
        await pair.producer.submit(req, FREE, watch=True)
        grant = await pair.claimed()
        cut_once(proxy, "finish")
        assert await pair.answer(grant) is Finished.ALREADY
        assert proxy.calls.count("finish") == 2
        assert (await pair.producer.wait(req.id, 5)).body == Body(text="A(x)")
        assert notices(broker, pair) == [req.id]


async def test_a_submit_whose_reply_is_lost_is_one_request(broker: Server, queue_name: str) -> None:
    async with pair_behind(broker, queue_name) as (pair, proxy):
        req = pair.req("x")
        cut_once(proxy, "submit")
        submitted = await pair.producer.submit(req, FREE, watch=True)
        assert proxy.calls.count("submit") == 2
        assert submitted.joined, "its second run met its first"
        async with serving(pair):
            assert (await pair.producer.wait(req.id, 5)).body == Body(text="A(x)")
        assert proxy.calls.count("finish") == 1, "run once"
        assert (await pair.producer.stats()).live == 0


def notices(broker: Server, pair: Pair) -> list[str]:
    client: Any = redis.Redis.from_url(broker.url)
    key = f"sl:{{{pair.settings.queue_name}:0}}:out:{pair.producer.api_id}"
    told = [fields[b"i"].decode() for _, fields in client.xrange(key) if b"r" in fields]
    client.close()
    return told


ROOM = Room(3, is_idle=True, slots=8)


async def test_a_claim_that_waits_at_the_bell_is_made_when_it_rings(pair: Pair) -> None:
    waiting = asyncio.ensure_future(pair.consumer.wait_for_work(5, wants_work=True, room=ROOM))
    req = pair.req("x")
    await pair.producer.submit(req, FREE, watch=True)
    news = await waiting
    assert news.is_all
    assert news.claimed is not None
    (grant,) = news.claimed.grants
    assert grant.id == req.id
    assert await pair.answer(grant) is Finished.OK
    again = await pair.consumer.wait_for_work(0.01, wants_work=True, room=ROOM)
    assert again.claimed is not None
    assert again.claimed.grants == [], "it was given once"


async def test_a_claim_that_was_made_meanwhile_voids_the_one_at_the_bell(pair: Pair) -> None:
    waiting = asyncio.ensure_future(pair.consumer.wait_for_work(5, wants_work=False, room=ROOM))
    for i in range(2):
        await pair.producer.submit(pair.req(str(i)), FREE)
    first = await pair.consumer.claim(1, is_idle=True)
    second = await pair.consumer.claim(1, is_idle=False)
    third = pair.req("x")
    await pair.producer.submit(third, FREE)
    await pair.producer.cancel(first.grants[0].id)  # which ends the wait
    news = await waiting
    assert news.ended == [first.grants[0].id]
    assert news.claimed is None
    assert len({grant.id for part in (first, second) for grant in part.grants}) == 2
    assert [g.id for g in (await pair.consumer.claim(3, is_idle=False)).grants] == [third.id]


async def test_a_claim_that_runs_beside_the_one_at_the_bell_gives_nothing_twice(pair: Pair) -> None:
    """Both have the same number. Whichever reply comes first is taken, and the other one is known."""
    given: list[str] = []
    for i in range(50):
        req = pair.req(str(i))
        waiting = asyncio.ensure_future(pair.consumer.wait_for_work(5, wants_work=True, room=ROOM))
        await asyncio.sleep(0)
        submitting = asyncio.ensure_future(pair.producer.submit(req, FREE))
        claimed = [await pair.consumer.claim(3, is_idle=True)]
        await submitting
        while not (grants := [grant for part in claimed for grant in part.grants]):
            news = await waiting
            claimed += [news.claimed] if news.claimed is not None else []
            claimed.append(await pair.consumer.claim(3, is_idle=True))
        assert [grant.id for grant in grants] == [req.id]
        given += [grant.id for grant in grants]
        waiting.cancel()
        news_or_none = (await asyncio.gather(waiting, return_exceptions=True))[0]
        if isinstance(news_or_none, News) and news_or_none.claimed is not None:
            assert [g.id for g in news_or_none.claimed.grants] in ([], [req.id])
        await pair.answer(grants[0])
    assert len(given) == len(set(given)) == 50


async def test_what_a_claim_at_the_bell_gave_is_given_again_where_its_reply_was_lost(
    broker: Server, queue_name: str
) -> None:
    async with pair_behind(broker, queue_name) as (pair, proxy):
        cut_once(proxy, "claim")
        waiting = asyncio.ensure_future(pair.consumer.wait_for_work(5, wants_work=True, room=ROOM))
        req = pair.req("x")
        await pair.producer.submit(req, FREE)
        assert (await waiting).claimed is None
        (grant,) = (await pair.consumer.claim(3, is_idle=True)).grants
        assert (grant.id, grant.grants) == (req.id, 1)


async def test_what_a_claim_at_the_bell_gave_is_given_back_by_a_worker_that_leaves(
    pair: Pair,
) -> None:
    for moment_s in (0.0, 0.0005, 0.001, 0.002, 0.01):
        waiting = asyncio.ensure_future(pair.consumer.wait_for_work(5, wants_work=True, room=ROOM))
        req = pair.req("x")
        submitting = asyncio.ensure_future(pair.producer.submit(req, FREE))
        await asyncio.sleep(moment_s)
        waiting.cancel()
        news, _ = await asyncio.gather(waiting, submitting, return_exceptions=True)
        if isinstance(news, News) and news.claimed is not None:
            await pair.consumer.release(news.claimed.grants)
        await pair.consumer.leave()
        stats = await pair.producer.stats()
        assert (stats.running, stats.queued) == (0, 1)
        await pair.producer.cancel(req.id)


async def test_what_came_to_a_worker_that_stands_still_is_soon_somebody_elses(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was granted by the claim that waited, and no beat ever tells of it."""
    monkeypatch.setattr("shared.queue.claiming.AHEAD_LEASE_MS", 100)
    assert pair.settings.lease_s > 10
    waiting = asyncio.ensure_future(pair.consumer.wait_for_work(5, wants_work=True, room=ROOM))
    req = pair.req("x")
    await pair.producer.submit(req, FREE, watch=True)
    news = await waiting
    assert news.claimed is not None
    (lost,) = news.claimed.grants
    async with asyncio.timeout(8):
        while not (again := (await pair.consumer.claim(1, is_idle=True)).grants):
            await asyncio.sleep(0.05)
    assert (again[0].id, again[0].crashes, again[0].attempts) == (req.id, 0, 0)
    assert await pair.answer(again[0]) is Finished.OK
    assert await pair.answer(lost) is Finished.LOST


async def test_a_claim_at_the_bell_whose_script_is_not_there_is_made_apart(
    broker: Server, queue_name: str
) -> None:
    async with pair_behind(broker, queue_name) as (pair, proxy):

        def unknown(called: str, command: list[bytes]) -> Fault:
            if called != "claim":
                return None
            proxy.on_call = lambda called, command: None
            return b"NOSCRIPT No matching script."

        proxy.on_call = unknown
        waiting = asyncio.ensure_future(pair.consumer.wait_for_work(5, wants_work=True, room=ROOM))
        req = pair.req("x")
        await pair.producer.submit(req, FREE)
        news = await waiting
        assert (news.claimed, news.is_all) == (None, False)
        assert [g.id for g in (await pair.consumer.claim(3, is_idle=True)).grants] == [req.id]


async def test_a_wait_for_work_that_is_cancelled_at_the_moment_of_the_bell_delays_nothing(
    pair: Pair,
) -> None:
    """Blocking reads that carry data lose it in that moment; a bell that is lost costs its time-out and no more."""
    rng, loop = random.Random(1), asyncio.get_running_loop()
    bell_s = 0.03
    delays: list[float] = []
    rung = 0
    for _ in range(300):
        req = pair.req()
        waiting = asyncio.ensure_future(pair.consumer.wait_for_work(bell_s, wants_work=True))
        began = loop.time()
        submitting = asyncio.ensure_future(pair.producer.submit(req, FREE))
        await asyncio.sleep(rng.uniform(0, 0.002))
        waiting.cancel()
        ended = await asyncio.gather(waiting, submitting, return_exceptions=True)
        if isinstance(ended[0], News):
            rung += 1
        else:
            # Nobody claims before the bell is heard or its time is over.
            await pair.consumer.wait_for_work(bell_s, wants_work=True)
        grant = await pair.claimed()
        delays.append(loop.time() - began)
        assert grant.id == req.id
        await pair.answer(grant)
    assert rung < 300, "some were cancelled before they were told"
    assert min(delays) < bell_s, "some bells were heard"
    assert max(delays) < bell_s + 0.5


@pytest.mark.parametrize("name", ["nack", "end", "settle", "attach"])
async def test_other_calls_whose_reply_is_lost_do_their_work_once(
    broker: Server, queue_name: str, name: str
) -> None:
    async with pair_behind(broker, queue_name) as (pair, proxy):
        req = pair.req("x")
        await pair.producer.submit(req, FREE, watch=True)
        grant = await pair.claimed()
        cut_once(proxy, name)
        if name == "nack":
            await pair.consumer.release([grant])
            (again,) = (await pair.consumer.claim(1, is_idle=True)).grants
            assert (again.id, again.grants, again.attempts) == (req.id, 2, 0)
        elif name == "attach":
            assert await pair.producer.attach(req.id) is not None
            await pair.answer(grant)
        else:
            await pair.producer.cancel(req.id)
            await pair.consumer.settle(grant, Report(usage=Usage(completion_tokens=3)))
        assert proxy.calls.count(name) == 2
        if name != "nack":
            answer = await pair.producer.wait(req.id, 5)
            assert answer.outcome.status == ("finished" if name == "attach" else "cancelled")
            assert notices(broker, pair) == [req.id]


async def test_a_notice_that_a_closing_worker_cannot_send_any_more_is_no_error(pair: Pair) -> None:
    req = pair.req("x")
    await pair.producer.submit(req, FREE, watch=True)
    (grant,) = (await pair.consumer.claim(1, is_idle=True)).grants
    await pair.finish(grant, "done")
    await pair.consumer._line.close()
    await pair.consumer._notify(req.id, pair.producer.api_id)
    assert (await pair.producer.wait(req.id, 5)).body == Body(text="done")
