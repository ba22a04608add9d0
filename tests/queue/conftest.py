"""A fresh queue on the session's real server for each test: its scripts alone, or both halves."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest
import redis

from tests.queue.harness import Shard
from tests.queue.pair import Pair, pair_on


@pytest.fixture
def shard(broker_url: str, queue_name: str) -> Iterator[Shard]:
    client = redis.Redis.from_url(broker_url)
    shard = Shard(client, queue_name)
    shard.advance(1)
    yield shard
    shard.check()
    keys = list(client.scan_iter(f"{shard.keys.prefix}*", 1000))
    if keys:
        client.unlink(*keys)
    client.close()


@pytest.fixture
async def pair(broker_url: str, queue_name: str) -> AsyncIterator[Pair]:
    async with pair_on(broker_url, queue_name) as pair:
        yield pair
