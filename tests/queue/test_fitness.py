"""Which brokers may hold requests."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest
import redis

from shared.errors import BrokerUnavailable
from shared.queue.connection import Connection
from shared.queue.fitness import Fitness
from shared.queue.producer import Producer
from shared.queue.snapshot import Caps
from shared.request import Req
from shared.sampling import SamplingParams
from shared.settings import QueueSettings
from tests.valkey_server import Server


async def test_a_broker_that_evicts_gets_no_request_until_it_is_mended(
    queue_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shared.queue.producer.LOOK_S", 0.1)
    server = Server(extra=("--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru")).start()
    client: Any = redis.Redis.from_url(server.url)
    settings = QueueSettings.load(redis_url=server.url, queue_name=queue_name)
    connection = Connection.open(settings)
    producer = Producer(connection, settings)
    await producer.start()
    try:
        async with asyncio.timeout(10):
            while producer.known_stats is None:
                await asyncio.sleep(0.01)
        assert not producer.is_up
        with pytest.raises(BrokerUnavailable, match="noeviction"):
            await producer.submit(request(producer), Caps())
        client.config_set("maxmemory-policy", "noeviction")
        async with asyncio.timeout(10):
            while not producer.is_up:
                await asyncio.sleep(0.01)
        await producer.submit(request(producer), Caps())
    finally:
        await producer.close()
        await connection.close()
        client.close()
        server.stop()
        server.clean()


def request(producer: Producer) -> Req:
    sampling = SamplingParams(max_tokens=4)
    key = sampling.bucket_key
    return Req(id=producer.new_id(), sampling=sampling, bucket_key=key, digest="d", prompt="x")


@pytest.mark.parametrize(
    ("facts", "problem"),
    [
        ({}, None),
        ({"maxmemory": 0, "policy": "allkeys-lru"}, None),
        ({"policy": "volatile-ttl"}, "noeviction"),
        ({"version": "6.2.14"}, "6.2.14"),
        ({"version": ""}, None),
        ({"layout": 1}, None),
        ({"layout": 2}, "layout 2"),
    ],
)
def test_what_a_broker_is_refused_for(facts: dict[str, Any], problem: str | None) -> None:
    good = Fitness("7.2.4", 1 << 30, "noeviction", is_persistent=True, layout=None)
    found = msgspec.structs.replace(good, **facts).problem
    assert found is None if problem is None else problem in (found or "")
