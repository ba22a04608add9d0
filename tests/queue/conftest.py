"""A fresh queue on the session's real server for each test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import redis

from tests.queue.harness import Shard


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
