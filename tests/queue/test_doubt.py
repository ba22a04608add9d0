"""What may or may not have got through, and nobody waits for: it is ended, and never made again."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from redis.exceptions import ResponseError

from shared.errors import BrokerUnavailable
from shared.queue import line
from shared.queue.scripts import Call
from shared.status import ReqStatus
from tests.queue.pair import FREE, Pair


async def live(pair: Pair) -> int:
    return (await pair.producer.stats()).live


async def is_empty(pair: Pair) -> None:
    async with asyncio.timeout(10):
        while await live(pair):
            await asyncio.sleep(0.02)


@pytest.mark.parametrize(("times_sent", "may_have_run"), [(1, False), (2, True)])
async def test_a_refusal_says_nothing_of_an_earlier_copy(
    times_sent: int, may_have_run: bool
) -> None:
    entry = line._Entry(("PING",), 0.0, asyncio.get_running_loop().create_future())
    entry.times_sent = times_sent
    line._fail(entry, ResponseError("OOM command not allowed"))
    error = entry.future.exception()
    assert isinstance(error, BrokerUnavailable)
    assert error.may_have_run is may_have_run


async def test_a_list_that_is_refused_half_way_runs_for_nobody(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    parent, run, chunks = pair.req(), pair.producer._line.run, []

    async def full(call: Any, *, patient: bool = False) -> Any:
        if isinstance(call, Call) and call.script.name == "submit_many":
            chunks.append(call)
            if len(chunks) == 2:
                raise BrokerUnavailable("the broker takes no writes")
        return await run(call, patient=patient)

    monkeypatch.setattr(pair.producer._line, "run", full)
    with pytest.raises(BrokerUnavailable):
        await pair.producer.submit_list(parent, pair.children(parent, 100), FREE)
    await is_empty(pair)
    snapshot = await pair.producer.peek(parent.id)
    assert snapshot is not None
    assert snapshot.outcome is not None
    assert snapshot.outcome.status is ReqStatus.CANCELLED


async def test_what_the_broker_forgot_is_not_made_again_for_who_has_left(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    req = pair.req()
    await pair.producer.submit(req, FREE, watch=True)
    keys = await pair.producer._line.run(("KEYS", f"sl:{{{pair.settings.queue_name}:0}}:*"))
    run = pair.producer._line.run

    async def leave(call: Any, *, patient: bool = False) -> Any:
        # Between the look that found nothing and the second submit its caller goes.
        if (
            isinstance(call, Call)
            and call.script.name == "submit"
            and req.id in pair.producer._waiters
        ):
            pair.producer.unwatch(req.id)
            await pair.producer.cancel(req.id)
        return await run(call, patient=patient)

    monkeypatch.setattr(pair.producer._line, "run", leave)
    await run(("DEL", *keys))
    await pair.producer._results.reconcile(0.0)
    await is_empty(pair)


async def test_an_answer_that_is_there_after_all_is_delivered_and_not_called_lost(
    pair: Pair,
) -> None:
    req = pair.req()
    await pair.producer.submit(req, FREE, watch=True)
    waiter = pair.producer._waiters.get(req.id)
    assert waiter is not None
    await pair.answer(await pair.claimed())
    # As it was when the peek found nothing, and the answer came with another copy of the submit.
    await pair.producer._results._resubmit(req.id, waiter)
    answer = await pair.producer.wait(req.id, 5)
    assert answer.outcome.status is ReqStatus.FINISHED


async def test_a_slow_reconcile_does_not_keep_the_tick_waiting(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    never = asyncio.Event()

    async def stuck(age_s: float) -> None:
        await never.wait()

    monkeypatch.setattr(pair.producer._results, "reconcile", stuck)
    key = pair.producer._shards[0].keys.fixed("apis")
    seen: set[bytes] = set()

    async def look() -> None:
        while len(seen) < 4:
            seen.add(await pair.producer._line.run(("HGET", key, pair.producer.api_id)))
            await asyncio.sleep(0.1)

    await asyncio.wait_for(look(), 15)


async def test_a_list_that_cannot_be_read_does_not_stop_the_upkeep_of_others(pair: Pair) -> None:
    scripts = pair.producer._shards[0]
    run = pair.producer._line.run
    await run(("HSET", scripts.keys.group("q.0-broken"), "submitted", "x"))
    await run(("ZADD", scripts.keys.fixed("resv"), 0, "q.0-broken"))
    req = pair.req(timeout_s=0.5, queue_timeout_s=0.5)
    await pair.producer.submit(req, FREE)
    async with asyncio.timeout(15):
        while await live(pair):
            await asyncio.sleep(0.05)
    assert await run(("ZCARD", scripts.keys.fixed("resv"))) == 0


async def test_one_that_cannot_be_cancelled_does_not_keep_the_others_alive(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    reqs = [pair.req() for _ in range(70)]
    for req in reqs:
        await pair.producer.submit(req, FREE)
    cancelling, bad = pair.producer._cancelling, {req.id for req in reqs[:64]}
    cancel = cancelling.cancel

    async def fails(rid: str, **why: str) -> Any:
        if rid in bad:
            raise ValueError("unreadable")
        return await cancel(rid, **why)

    monkeypatch.setattr(cancelling, "cancel", fails)
    for req in reqs:
        pair.producer.cancel_later(req.id)
    async with asyncio.timeout(10):
        while await live(pair) > 64:
            await asyncio.sleep(0.05)
