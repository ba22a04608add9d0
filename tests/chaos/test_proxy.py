"""The proxy before a real broker: each fault strikes as it says, and a new connection works after it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import redis.asyncio as aioredis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from tests.chaos.proxy import Proxy
from tests.valkey_server import Server


@pytest.fixture
async def proxy(broker: Server, tmp_path: Path) -> AsyncIterator[Proxy]:
    proxy = Proxy(tmp_path / "p.sock", broker.socket)
    await proxy.start()
    yield proxy
    await proxy.close()


@pytest.fixture
async def client(proxy: Proxy) -> AsyncIterator[aioredis.Redis]:
    client = aioredis.Redis.from_url(proxy.url, socket_timeout=0.3, retry=Retry(NoBackoff(), 0))
    await client.ping()
    yield client
    await client.aclose()


async def test_what_is_cut_is_lost_and_the_next_connection_works(
    proxy: Proxy, client: aioredis.Redis
) -> None:
    assert proxy.cut() == 1
    with pytest.raises((RedisError, OSError)):
        await client.ping()
    assert await client.ping()


@pytest.mark.parametrize("replies", [True, False])
async def test_a_cut_after_some_bytes_lets_those_through(
    proxy: Proxy, client: aioredis.Redis, queue_name: str, *, replies: bool
) -> None:
    proxy.cut_after(2, replies=replies)
    with pytest.raises((RedisError, OSError)):
        await client.incr(queue_name)
    # The broker has done what it was told whole, and nothing of what was cut.
    assert await client.get(queue_name) == (b"1" if replies else None)


async def test_swallowed_replies_are_missed_though_the_broker_did_it(
    proxy: Proxy, client: aioredis.Redis, queue_name: str
) -> None:
    proxy.swallow()
    with pytest.raises(RedisError):
        await client.incr(queue_name)
    proxy.cut()
    assert await client.get(queue_name) == b"1"


async def test_nothing_passes_while_it_stalls_and_all_of_it_after(
    proxy: Proxy, client: aioredis.Redis
) -> None:
    proxy.stall()
    asked = asyncio.ensure_future(client.ping())
    await asyncio.sleep(0.1)
    assert not asked.done()
    proxy.resume()
    assert await asked


async def test_it_stalls_at_a_command_which_the_broker_still_does(
    proxy: Proxy, client: aioredis.Redis, queue_name: str
) -> None:
    marked = proxy.stall_at(queue_name.encode())
    assert await client.ping()
    asked = asyncio.ensure_future(client.incr(queue_name))
    assert queue_name.encode() in await marked
    await asyncio.sleep(0.1)
    assert not asked.done()
    proxy.resume()
    assert await asked == 1
    assert await client.incr(queue_name) == 2


async def test_a_broker_that_is_away_is_a_lost_connection(tmp_path: Path) -> None:
    proxy = Proxy(tmp_path / "p.sock", tmp_path / "nobody.sock")
    await proxy.start()
    client = aioredis.Redis.from_url(proxy.url, retry=Retry(NoBackoff(), 0))
    try:
        with pytest.raises((RedisError, OSError)):
            await client.ping()
    finally:
        await client.aclose()
        await proxy.close()
