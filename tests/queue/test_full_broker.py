"""A broker whose memory or disk is full: nothing new is taken, what runs ends, and it recovers without a restart."""

from __future__ import annotations

import asyncio
import resource
from collections.abc import Iterator
from typing import Any

import pytest
import redis

from shared.errors import BrokerUnavailable
from shared.queue.consumer import Finished
from shared.request import Body, Report
from tests.queue.pair import FREE, INFO, pair_on, serving
from tests.valkey_server import Server


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server(aof=True, extra=("--appendfsync", "everysec")).start()
    yield server
    server.stop()
    server.clean()


def limit_files(server: Server, n_bytes: int) -> None:
    """Writes beyond that size fail; -1 lifts the limit."""
    assert server.process is not None
    resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (n_bytes, resource.RLIM_INFINITY))


async def test_at_the_memory_limit_submits_are_refused_and_running_work_ends_and_makes_room(
    queue_name: str,
) -> None:
    server = Server().start()
    client: Any = redis.Redis.from_url(server.url)
    try:
        async with pair_on(server.url, queue_name) as pair:
            running, queued = pair.req("r" * 500_000), pair.req("q" * 500_000)
            await pair.producer.submit(running, FREE, watch=True)
            grant = await pair.claimed()
            await pair.producer.submit(queued, FREE, watch=True)
            client.config_set("maxmemory", client.info("memory")["used_memory"])
            with pytest.raises(BrokerUnavailable, match="takes no writes"):
                await pair.producer.submit(pair.req("new" * 100), FREE)
            beat = await asyncio.to_thread(
                pair.consumer.beat, {grant.id: (grant.token, True)}, INFO
            )
            assert beat.lost == []
            snapshot = await pair.producer.cancel(queued.id)
            assert snapshot is not None
            assert snapshot.outcome is not None
            assert await pair.consumer.finish(grant, Report(), Body(text="ok")) is Finished.OK
            assert (await pair.producer.wait(running.id, 5)).body == Body(text="ok")
            # What they took is free again, without a hand being laid on it.
            async with asyncio.timeout(5):
                while True:
                    try:
                        await pair.producer.submit(pair.req("new" * 100), FREE)
                        break
                    except BrokerUnavailable:
                        await asyncio.sleep(0.05)
    finally:
        client.close()
        server.stop()
        server.clean()


async def test_a_full_disk_under_the_log_refuses_submits_and_keeps_results_until_there_is_room(
    server: Server, queue_name: str
) -> None:
    client: Any = redis.Redis.from_url(server.url)
    async with pair_on(server.url, queue_name) as pair:
        req = pair.req("x")
        await pair.producer.submit(req, FREE, watch=True)
        grant = await pair.claimed()
        (log,) = (server.folder / "appendonlydir").glob("*.incr.aof")
        limit_files(server, log.stat().st_size)
        async with asyncio.timeout(10):
            while client.info("persistence")["aof_last_write_status"] != "err":
                await asyncio.sleep(0.05)
        with pytest.raises(BrokerUnavailable, match="takes no writes"):
            await pair.producer.submit(pair.req("new"), FREE)
        finishing = asyncio.ensure_future(pair.answer(grant))
        await asyncio.sleep(0.3)
        assert not finishing.done()
        limit_files(server, resource.RLIM_INFINITY)
        async with asyncio.timeout(15):
            assert await finishing is Finished.OK
        assert (await pair.producer.wait(req.id, 5)).body == Body(text="A(x)")
        await pair.producer.submit(pair.req("new"), FREE)
    client.close()


async def test_the_log_may_be_rewritten_while_requests_come_and_go(
    server: Server, queue_name: str
) -> None:
    client: Any = redis.Redis.from_url(server.url)
    async with pair_on(server.url, queue_name) as pair, serving(pair):
        client.bgrewriteaof()
        reqs = [pair.req(str(i)) for i in range(100)]
        await asyncio.gather(*(pair.producer.submit(req, FREE, watch=True) for req in reqs))
        answers = await asyncio.gather(*(pair.producer.wait(req.id, 10) for req in reqs))
        assert [a.body for a in answers] == [Body(text=f"A({i})") for i in range(100)]
        async with asyncio.timeout(10):
            while client.info("persistence")["aof_rewrite_in_progress"]:
                await asyncio.sleep(0.05)
        assert client.info("persistence")["aof_last_bgrewrite_status"] == "ok"
    client.close()
