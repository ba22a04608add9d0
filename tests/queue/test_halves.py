"""The two halves of the queue together, over the real broker: wait, lists, cancel, faults of the connection."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from pathlib import Path
from typing import Any

import msgspec
import pytest
import redis

from shared.errors import BrokerUnavailable, CodecError, IdempotencyMismatch, QueueFull
from shared.queue.consumer import Finished
from shared.queue.ending import end_missing
from shared.queue.keys import Keys
from shared.queue.scripts import Call
from shared.queue.snapshot import Caps
from shared.request import Body, Report, Usage
from tests.queue.pair import FREE, INFO, Pair, pair_on, serving, until
from tests.valkey_server import Server


async def test_submit_and_wait(pair: Pair) -> None:
    async with serving(pair):
        req = pair.req("hello")
        submitted = await pair.producer.submit(req, FREE, watch=True)
        answer = await pair.producer.wait(req.id, 5)
        pair.producer.unwatch(req.id)
    assert not submitted.joined
    assert answer.body == Body(text="A(hello)")
    assert answer.outcome.report.finish_reason == "stop"
    assert pair.producer.waiting == 0


async def test_a_thousand_waiters_share_a_few_connections(pair: Pair, broker_url: str) -> None:
    async with serving(pair):
        reqs = [pair.req(str(i)) for i in range(1000)]
        await asyncio.gather(*(pair.producer.submit(req, FREE, watch=True) for req in reqs))
        answers = await asyncio.gather(*(pair.producer.wait(req.id, 20) for req in reqs))
        client = redis.Redis.from_url(broker_url)
        assert len(client.client_list()) <= 10
        client.close()
    texts = [answer.body.text if answer.body else None for answer in answers]
    assert texts == [f"A({i})" for i in range(1000)]


async def test_a_large_answer_arrives_whole(pair: Pair) -> None:
    async with serving(pair):
        req = pair.req("y" * 200_000)
        await pair.producer.submit(req, FREE, watch=True)
        answer = await pair.producer.wait(req.id, 5)
    assert answer.body is not None
    assert len(answer.body.text) == 200_003


async def test_a_list_is_answered_in_order_under_one_id(pair: Pair) -> None:
    async with serving(pair):
        parent = pair.req()
        children = pair.children(parent, 150)
        await pair.producer.submit_list(parent, children, FREE, watch=True)
        answer = await pair.producer.wait(parent.id, 10)
        items = await pair.producer.answers([child.id for child in children])
    assert answer.outcome.n_children == 150
    assert [item.body.text for item in items if item and item.body] == [
        f"A(item {i})" for i in range(150)
    ]


async def test_who_was_answered_goes_on_before_the_next_read(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader, notes = pair.producer._results._reader, []
    run = reader.run

    async def noting(*options: Any) -> Any:
        notes.append("read")
        reply = await run(*options)
        notes.append("came")
        return reply

    monkeypatch.setattr(reader, "run", noting)
    async with serving(pair):
        for _ in range(2):  # the first ends a read from before
            req = pair.req()
            await pair.producer.submit(req, FREE, watch=True)
            await pair.producer.wait(req.id, 10)
            last = notes[-1:]
    assert last == ["came"]


async def test_the_same_id_joins_and_another_body_is_refused(pair: Pair) -> None:
    req = pair.req("once", rid=pair.producer.derived_id("t", "idem", "k"))
    await pair.producer.submit(req, FREE, watch=True)
    again = await pair.producer.submit(req, FREE, watch=True)
    assert again.joined
    with pytest.raises(IdempotencyMismatch):
        await pair.producer.submit(pair.req("other", rid=req.id, digest="e"), FREE)
    async with serving(pair):
        first, second = await asyncio.gather(
            pair.producer.wait(req.id, 5), pair.producer.wait(req.id, 5)
        )
    assert first == second
    finished = await pair.producer.submit(req, FREE, watch=True)
    assert finished.joined
    assert (await pair.producer.wait(req.id, 5)).body == Body(text="A(once)")


async def test_a_full_queue_refuses_and_says_so(pair: Pair) -> None:
    await pair.producer.submit(pair.req(), Caps(requests=1))
    with pytest.raises(QueueFull, match="requests"):
        await pair.producer.submit(pair.req(), Caps(requests=1))
    parent = pair.req()
    with pytest.raises(QueueFull):
        await pair.producer.submit_list(parent, pair.children(parent, 3), Caps(requests=3))


async def test_cancel_reaches_queued_running_and_listed_ones(pair: Pair) -> None:
    queued, running = pair.req(), pair.req()
    await pair.producer.submit(running, FREE, watch=True)
    claimed = await pair.consumer.claim(1, is_idle=True)
    await pair.producer.submit(queued, FREE, watch=True)
    parent = pair.req()
    await pair.producer.submit_list(parent, pair.children(parent, 70), FREE, watch=True)
    for rid in (queued.id, running.id, parent.id):
        snapshot = await pair.producer.cancel(rid)
        assert snapshot is not None
        assert snapshot.outcome is not None
        assert (await pair.producer.wait(rid, 5)).outcome.status == "cancelled"
    news = await pair.consumer.wait_for_work(2, wants_work=False)
    assert news.ended == [running.id]
    grant = claimed.grants[0]
    assert await pair.answer(grant) is Finished.LOST
    await pair.consumer.settle(grant, Report(usage=Usage(completion_tokens=3)))
    answer = await pair.producer.answer(running.id)
    assert answer is not None
    assert answer.outcome.report.usage == Usage(completion_tokens=3)
    assert (await pair.consumer.claim(10, is_idle=True)).grants == []
    assert await pair.producer.cancel("q.0-unknown") is None


async def test_a_list_that_was_reserved_and_no_more_is_completed_by_the_next_try(
    pair: Pair,
) -> None:
    """As after a lost reply, or a front door that died between the reservation and the last chunk."""
    parent = pair.req()
    children = pair.children(parent, 150)

    async def fails_at_the_second_chunk(call: Call, **options: Any) -> Any:
        if isinstance(call, Call) and call.script.name == "submit_many" and call.args[2] == 64:
            raise BrokerUnavailable("away")
        return await run(call, **options)

    run = pair.producer._line.run
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pair.producer._line, "run", fails_at_the_second_chunk)
        with pytest.raises(BrokerUnavailable):
            await pair.producer.submit_list(parent, children, FREE, owns_id=False)
    async with serving(pair):
        await pair.producer.submit_list(parent, children, FREE, watch=True, owns_id=False)
        assert (await pair.producer.wait(parent.id, 10)).outcome.status == "finished"
    answers = await pair.producer.answers([child.id for child in children])
    texts = [answer.body.text if answer and answer.body else None for answer in answers]
    assert texts == [f"A(item {i})" for i in range(150)]


async def test_a_list_whose_canceller_died_half_way_is_cancelled_all_the_same(pair: Pair) -> None:
    parent = pair.req()
    await pair.producer.submit_list(parent, pair.children(parent, 5), FREE, watch=True)
    line, scripts = pair.producer._line, pair.producer._shards[0]
    await end_missing(line, scripts, parent.id, "C", "cancelled", 60_000)
    answer = await pair.producer.wait(parent.id, 15)
    assert answer.outcome.status == "cancelled"
    assert (await pair.producer.stats()).live == 0


async def test_what_is_to_be_cancelled_later_is_once_the_broker_is_back(queue_name: str) -> None:
    server = Server().start()
    try:
        async with pair_on(server.url, queue_name) as pair:
            req = pair.req()
            await pair.producer.submit(req, FREE)
            server.send(signal.SIGSTOP)
            with pytest.raises(BrokerUnavailable):
                await pair.producer.cancel(req.id)
            pair.producer.cancel_later(req.id, message="its client has gone")
            server.send(signal.SIGCONT)
            answer = None
            async with asyncio.timeout(15):
                while answer is None:
                    await asyncio.sleep(0.05)
                    with contextlib.suppress(BrokerUnavailable):
                        answer = await pair.producer.answer(req.id)
            outcome = answer.outcome
            assert (outcome.status, outcome.message) == ("cancelled", "its client has gone")
    finally:
        server.stop()
        server.clean()


async def test_options_in_the_brokers_address_change_no_protocol(
    broker_url: str, queue_name: str
) -> None:
    url = f"{broker_url}?protocol=3&decode_responses=true&socket_timeout=0.001"
    async with pair_on(url, queue_name) as pair, serving(pair):
        req = pair.req()
        await pair.producer.submit(req, FREE, watch=True)
        assert (await pair.producer.wait(req.id, 4)).body == Body(text="A(x)")
        assert (await asyncio.to_thread(pair.consumer.beat, {}, INFO)).lost == []


async def test_beats_keep_a_claim_and_tell_of_its_loss(pair: Pair) -> None:
    req = pair.req()
    await pair.producer.submit(req, FREE)
    grant = (await pair.consumer.claim(1, is_idle=True)).grants[0]
    held = {grant.id: (grant.token, True)}
    assert (await asyncio.to_thread(pair.consumer.beat, held, INFO)).lost == []
    await pair.producer.cancel(req.id)
    assert (await asyncio.to_thread(pair.consumer.beat, held, INFO)).lost == [req.id]
    stats = await pair.producer.stats()
    assert [worker.info.id for worker in stats.workers] == ["w"]


async def test_a_cancelled_claim_strands_nothing(pair: Pair) -> None:
    for _ in range(2):
        await pair.producer.submit(pair.req(), FREE)
    await pair.consumer._line.run(("PING",))  # so that there is a connection on which it goes out
    claiming = asyncio.create_task(pair.consumer.claim(1, is_idle=True))
    await asyncio.sleep(0)
    claiming.cancel()
    await asyncio.gather(claiming, return_exceptions=True)
    assert (await pair.producer.stats()).running == 1
    await pair.consumer.leave()
    stats = await pair.producer.stats()
    assert (stats.queued, stats.running) == (2, 0)


async def test_a_lost_notice_is_mended_by_the_reconcile(pair: Pair, broker_url: str) -> None:
    client: Any = redis.Redis.from_url(broker_url)
    req = pair.req()
    await pair.producer.submit(req, FREE, watch=True)
    grant = (await pair.consumer.claim(1, is_idle=True)).grants[0]
    client.delete(f"sl:{{{pair.settings.queue_name}:0}}:out:{pair.producer.api_id}")
    await pair.answer(grant)
    client.close()
    assert (await pair.producer.wait(req.id, 10)).body == Body(text="A(x)")


async def test_a_request_that_the_broker_forgot_is_submitted_again(
    pair: Pair, broker_url: str
) -> None:
    req = pair.req("kept")
    await pair.producer.submit(req, FREE, watch=True)
    client: Any = redis.Redis.from_url(broker_url)
    for key in client.scan_iter(f"sl:{{{pair.settings.queue_name}:0}}*"):
        client.delete(key)
    client.close()
    async with serving(pair):
        assert (await pair.producer.wait(req.id, 10)).body == Body(text="A(kept)")


async def test_a_system_prompt_reaches_every_replica(pair: Pair, broker_url: str) -> None:
    async with pair_on(broker_url, pair.settings.queue_name) as other:
        assert await pair.producer.set_system_prompt("Be brief.", "admin") == 1
        await until(lambda: other.producer.known_system_prompt == ("Be brief.", 1))


async def test_script_flush_is_invisible(pair: Pair, broker_url: str) -> None:
    client: Any = redis.Redis.from_url(broker_url)
    async with serving(pair):
        for i in range(20):
            client.script_flush()
            req = pair.req(str(i))
            await pair.producer.submit(req, FREE, watch=True)
            assert (await pair.producer.wait(req.id, 5)).body == Body(text=f"A({i})")
            pair.producer.unwatch(req.id)
    client.close()


async def test_a_broker_that_is_away_is_an_error_within_the_budget_and_then_forgotten(
    tmp_path: Path, queue_name: str
) -> None:
    server = Server(aof=True).start()
    try:
        async with pair_on(server.url, queue_name) as pair, serving(pair):
            queued = pair.req("before")
            await pair.producer.submit(queued, FREE, watch=True)
            await pair.producer.wait(queued.id, 5)
            server.stop()
            loop = asyncio.get_running_loop()
            began = loop.time()
            with pytest.raises(BrokerUnavailable):
                await pair.producer.submit(pair.req("lost"), FREE, watch=True)
            assert loop.time() - began < 3
            assert not pair.producer.is_up
            server.start()
            await until(lambda: pair.producer.is_up)
            req = pair.req("after")
            await pair.producer.submit(req, FREE, watch=True)
            assert (await pair.producer.wait(req.id, 10)).body == Body(text="A(after)")
            known = await pair.producer.answer(queued.id)
            assert known is not None
            assert known.body == Body(text="A(before)")
    finally:
        server.stop()
        server.clean()


async def test_a_silent_broker_is_an_error_within_the_budget(queue_name: str) -> None:
    server = Server().start()
    try:
        async with pair_on(server.url, queue_name) as pair:
            await pair.producer.stats()
            server.send(signal.SIGSTOP)  # connections stay open, nothing answers
            loop = asyncio.get_running_loop()
            began = loop.time()
            with pytest.raises(BrokerUnavailable):
                await pair.producer.submit(pair.req(), FREE)
            assert loop.time() - began < 3
            server.send(signal.SIGCONT)
            await until(lambda: pair.producer.is_up)
    finally:
        server.stop()
        server.clean()


async def test_a_submit_in_doubt_is_ended_when_the_broker_is_back(queue_name: str) -> None:
    server = Server().start()
    try:
        async with pair_on(server.url, queue_name) as pair:
            await pair.producer.stats()
            server.send(signal.SIGSTOP)
            req = pair.req()
            with pytest.raises(BrokerUnavailable):
                await pair.producer.submit(req, FREE)
            server.send(signal.SIGCONT)
            async with asyncio.timeout(10):
                while True:
                    try:
                        snapshot = await pair.producer.peek(req.id)
                    except BrokerUnavailable:
                        continue
                    if snapshot is None or snapshot.outcome is not None:
                        break
                    await asyncio.sleep(0.05)
            assert (await pair.producer.stats()).live == 0
    finally:
        server.stop()
        server.clean()


async def test_a_submit_in_doubt_under_a_shared_id_ends_nobody_elses_request(
    queue_name: str,
) -> None:
    server = Server().start()
    try:
        async with (
            pair_on(server.url, queue_name) as first,
            pair_on(server.url, queue_name) as second,
        ):
            req = first.req("shared", rid=first.producer.derived_id("t", "key", "k"))
            await first.producer.submit(req, FREE, watch=True, owns_id=False)
            await second.producer.stats()
            server.send(signal.SIGSTOP)
            with pytest.raises(BrokerUnavailable):
                await second.producer.submit(req, FREE, watch=True, owns_id=False)
            server.send(signal.SIGCONT)
            await until(lambda: second.producer.is_up and first.producer.is_up)
            await asyncio.sleep(2.5)  # two rounds of what would have ended it
            async with serving(first):
                assert (await first.producer.wait(req.id, 10)).body == Body(text="A(shared)")
            assert second.producer.waiting == 0
    finally:
        server.stop()
        server.clean()


async def test_a_record_that_cannot_be_read_costs_its_own_waiter_alone(
    pair: Pair, broker_url: str
) -> None:
    """One is of a later release, one no record at all; a third one's notice is lost, and is made good."""
    reqs = [pair.req() for _ in range(3)]
    for req in reqs:
        await pair.producer.submit(req, FREE, watch=True)
    newer, broken, good = (await pair.consumer.claim(3, is_idle=True)).grants
    client: Any = redis.Redis.from_url(broker_url)
    keys = Keys(pair.settings.queue_name)
    record = msgspec.msgpack.decode(client.hget(keys.fixed("live"), newer.id))
    record[0] = 99
    client.hset(keys.fixed("live"), newer.id, msgspec.msgpack.encode(record))
    client.hdel(keys.fixed("live"), broken.id)
    client.set(keys.group(broken.id), "no list")
    client.delete(keys.out(pair.producer.api_id))
    client.close()
    await pair.answer(good)
    for grant in (newer, broken):
        with pytest.raises(CodecError, match=r"schema 99|cannot be read"):
            await pair.producer.wait(grant.id, 10)
    assert (await pair.producer.wait(good.id, 10)).body == Body(text="A(x)")


async def test_a_result_that_cannot_be_read_is_an_error_and_no_endless_wait(
    pair: Pair, broker_url: str
) -> None:
    req = pair.req()
    await pair.producer.submit(req, FREE, watch=True)
    grant = (await pair.consumer.claim(1, is_idle=True)).grants[0]
    client: Any = redis.Redis.from_url(broker_url)
    prefix = f"sl:{{{pair.settings.queue_name}:0}}"
    client.delete(f"{prefix}:out:{pair.producer.api_id}")
    await pair.answer(grant)
    client.set(f"{prefix}:body:{req.id}", b"\xc1 no record")
    client.close()
    with pytest.raises(CodecError):
        await pair.producer.wait(req.id, 10)
