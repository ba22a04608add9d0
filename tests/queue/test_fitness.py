"""Which brokers may hold requests."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest
import redis

from cli.broker import Broker
from shared.errors import BrokerUnavailable
from shared.queue.connection import Connection
from shared.queue.fitness import Fitness, look_at
from shared.queue.keys import Keys
from shared.queue.producer import Producer
from shared.queue.scripts import Scripts
from shared.queue.snapshot import Caps
from shared.request import Req
from shared.sampling import SamplingParams
from shared.settings import QueueSettings
from tests.valkey_server import Server


async def test_a_broker_that_evicts_gets_no_request_until_it_is_mended(
    queue_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shared.queue.fitness.LOOK_S", 0.1)
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


GOOD = Fitness("7.2.4", 1 << 30, "noeviction", log=True, fsync="everysec", saves=False, layout=None)


@pytest.mark.parametrize(
    ("facts", "problem"),
    [
        ({}, None),
        ({"maxmemory": 0, "policy": "allkeys-lru"}, None),
        ({"policy": "volatile-ttl"}, "noeviction"),
        ({"maxmemory": None, "policy": "allkeys-lru"}, "noeviction"),
        ({"maxmemory": None, "policy": ""}, None),
        ({"version": "6.2.14"}, "6.2.14"),
        ({"version": ""}, None),
        ({"layout": 1}, None),
        ({"layout": 2}, "layout 2"),
        ({"log": False}, None),
        ({"log": False, "require_persistence": True}, "REQUIRE_PERSISTENCE"),
        ({"log": False, "saves": True, "require_persistence": True}, None),
        ({"log": None, "saves": None, "require_persistence": True}, "does not say"),
        ({"durability": "aof"}, "appendfsync everysec"),
        ({"durability": "aof", "fsync": "always"}, None),
        ({"durability": "aof", "fsync": "always", "log": False}, "appendonly no"),
        ({"durability": "aof", "fsync": None}, "cannot be verified"),
        ({"durability": "aof", "fsync": None, "log": False}, "appendonly no"),
    ],
)
def test_what_a_broker_is_refused_for(facts: dict[str, Any], problem: str | None) -> None:
    found = msgspec.structs.replace(GOOD, **facts).problem
    assert found is None if problem is None else problem in (found or "")


@pytest.mark.parametrize(
    ("facts", "warning"),
    [
        ({}, None),
        ({"log": False}, "nothing on disk"),
        ({"log": False, "saves": True}, "snapshots alone"),
        ({"log": None, "saves": None}, "does not say"),
        ({"maxmemory": 0, "policy": "allkeys-lru"}, "would evict"),
        ({"policy": ""}, "maxmemory-policy"),
    ],
)
def test_what_a_broker_is_warned_of(facts: dict[str, Any], warning: str | None) -> None:
    found = msgspec.structs.replace(GOOD, **facts).warning
    assert found is None if warning is None else warning in (found or "")


LOG = ("--appendonly", "yes", "--appendfsync")


@pytest.mark.parametrize(
    ("options", "wanted", "problem"),
    [
        ((), {"durability": "aof"}, "appendonly no"),
        ((*LOG, "everysec"), {"durability": "aof"}, "appendfsync everysec"),
        ((*LOG, "always"), {"durability": "aof"}, None),
        ((*LOG, "always", "--rename-command", "CONFIG", ""), {"durability": "aof"}, "verified"),
        ((), {"require_persistence": True}, "nothing on disk"),
        (("--save", "3600 1"), {"require_persistence": True}, None),
        ((*LOG, "no", "--rename-command", "CONFIG", ""), {"require_persistence": True}, None),
    ],
)
async def test_a_broker_that_does_not_keep_what_is_asked_for_is_refused(
    options: tuple[str, ...], wanted: dict[str, Any], problem: str | None, queue_name: str
) -> None:
    server = Server(extra=options).start()
    settings = QueueSettings.load(redis_url=server.url, queue_name=queue_name, **wanted)
    connection = Connection.open(settings)
    producer = Producer(connection, settings)
    await producer.start()
    try:
        if problem is None:
            await producer.submit(request(producer), Caps())
        else:
            # The very first, too: nothing is taken on trust.
            with pytest.raises(BrokerUnavailable, match=problem):
                await producer.submit(request(producer), Caps())
    finally:
        await producer.close()
        await connection.close()
        server.stop()
        server.clean()


async def test_what_the_embedded_broker_is_started_with_is_durable(
    tmp_path: Path, queue_name: str
) -> None:
    broker = Broker(tmp_path, tmp_path / "b.sock", durable=True)
    process = await asyncio.create_subprocess_exec(
        *broker.command(), stdout=asyncio.subprocess.DEVNULL
    )
    settings = QueueSettings.load(redis_url=broker.url, queue_name=queue_name, durability="aof")
    connection = Connection.open(settings)
    try:
        async with asyncio.timeout(10):
            while not await asyncio.to_thread(broker.answers):
                await asyncio.sleep(0.02)
        found = await look_at(connection.line, Scripts(Keys(queue_name)), settings)
        assert (found.problem, found.warning) == (None, None)
    finally:
        await connection.close()
        process.terminate()
        await process.wait()
