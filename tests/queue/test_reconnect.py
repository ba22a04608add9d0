"""Faults of broker and network under all three kinds of connection: calls get through, and tries and lines stay few."""

from __future__ import annotations

import asyncio
import logging
import signal
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import redis

from shared.errors import BrokerUnavailable
from shared.queue.connection import Connection
from shared.queue.consumer import Finished
from shared.queue.keys import Keys
from shared.queue.scripts import Call, Scripts
from shared.settings import QueueSettings
from tests.queue.pair import FREE, pair_on
from tests.queue.proxy import Cut, Fault, proxy_to
from tests.valkey_server import Server

REPLIES = (
    b"READONLY You can't write against a read only replica.",
    b"LOADING Redis is loading the dataset in memory",
    b"CLUSTERDOWN The cluster is down",
    b"MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.",
    b"MOVED 3999 127.0.0.1:6381",
    b"ASK 3999 127.0.0.1:6381",
    b"TRYAGAIN Multiple keys request during rehashing of slot",
    b"UNBLOCKED force unblock from blocking operation, instance state changed (master -> replica?)",
    b"NOREPLICAS Not enough good replicas to write.",
    b"BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.",
)
CUTS = (Cut.BEFORE, Cut.AFTER)
BAD_S = 0.5
# A try straight away, then after 50, 100, 200 and 400 ms, each less up to half of it.
MOST_TRIES = 6


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shared.queue.connection.MARGIN_S", 0.8)


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server().start()
    yield server
    server.stop()
    server.clean()


class Clients:
    """The three kinds of connection of a process."""

    def __init__(self, url: str) -> None:
        self._connection = Connection.open(QueueSettings(redis_url=url, broker_budget_s=1))
        self.line = self._connection.line
        self.reader = self._connection.reader("waiting")
        self.beats = self._connection.sync_line()
        self.scripts = Scripts(Keys("faults"))

    async def close(self) -> None:
        self.beats.close()
        await self._connection.close()

    def call(self) -> Call:
        return self.scripts.tick(15_000)


@asynccontextmanager
async def clients_of(url: str) -> AsyncIterator[Clients]:
    clients = Clients(url)
    try:
        yield clients
    finally:
        await clients.close()


async def by_line(clients: Clients) -> None:
    assert len(await clients.line.run(clients.call(), patient=True)) == 4


async def by_reader(clients: Clients) -> None:
    """Comes again and again, as its callers do, without a pause of its own."""
    await clients.line.run(("ZADD", "bell", 0, "w"), patient=True)
    while await clients.reader.run(("BZPOPMIN", "bell", 1), 1) is None:
        await clients.line.run(("ZADD", "bell", 0, "w"), patient=True)


async def by_beats(clients: Clients) -> None:
    """At a beat's pace."""
    while True:
        try:
            assert len(await asyncio.to_thread(clients.beats.run, clients.call())) == 4
            return
        except BrokerUnavailable:
            await asyncio.sleep(0.1)


WAYS = {"line": (by_line, "tick"), "reader": (by_reader, "BZPOPMIN"), "beats": (by_beats, "tick")}


async def outlast(server: Server, way: str, fault: Fault) -> None:
    run, name = WAYS[way]
    async with proxy_to(server.socket) as proxy, clients_of(proxy.url) as clients:
        began: float | None = None
        hit = 0

        def on_call(called: str, command: list[bytes]) -> Fault:
            nonlocal began, hit
            if called != name:
                return None
            began = began or time.monotonic()
            if time.monotonic() > began + BAD_S:
                return None
            hit += 1
            return fault

        proxy.on_call = on_call
        async with asyncio.timeout(40):
            await run(clients)
        assert 1 <= hit <= MOST_TRIES, f"{way} under {fault!r}: {hit} tries in {BAD_S} s"
        assert proxy.connections <= MOST_TRIES + 2


async def test_each_error_of_a_server_that_is_not_ready_is_outlasted(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    cases = [(way, fault) for way in WAYS for fault in (*REPLIES, *CUTS)]
    await asyncio.gather(*(outlast(server, way, fault) for way, fault in cases))
    lines = [r for r in caplog.records if r.levelno >= logging.WARNING]
    assert len(lines) <= len(cases), "one for each that was down"


async def test_a_primary_without_its_replicas_takes_nothing_and_says_so(
    server: Server, queue_name: str
) -> None:
    """As one that is cut off: who can wait does, who cannot is told, and nothing is taken that could be lost."""
    async with pair_on(server.url, queue_name, broker_budget_s=0.5) as pair:
        client: Any = redis.Redis.from_url(server.url)
        await pair.producer.submit(pair.req(), FREE)
        grant = await pair.claimed()
        client.config_set("min-replicas-to-write", 1)
        began = time.monotonic()
        with pytest.raises(BrokerUnavailable):
            await pair.producer.submit(pair.req(), FREE, owns_id=False)
        assert time.monotonic() - began < 1.5
        finishing = asyncio.ensure_future(pair.answer(grant))
        await asyncio.sleep(0.3)
        assert not finishing.done()
        assert client.info("errorstats")["errorstat_NOREPLICAS"]["count"] > 0
        assert client.hlen(Keys(queue_name).fixed("live")) == 1
        client.config_set("min-replicas-to-write", 0)
        assert await finishing is Finished.OK
        assert (await pair.producer.stats()).live == 0
        client.close()


async def test_a_reply_to_nothing_ends_the_connection_and_no_call(server: Server) -> None:
    async with proxy_to(server.socket) as proxy, clients_of(proxy.url) as clients:
        await clients.line.run(("PING",))
        proxy.say(b"ERR max number of clients reached")
        while clients.line.is_up:
            await asyncio.sleep(0.01)
        assert await clients.line.run(("PING",), patient=True) == b"PONG"


async def test_a_silent_connection_is_given_up_and_the_call_made_on_the_next(
    server: Server,
) -> None:
    """The server is there, and what lies between has forgotten this connection."""
    async with proxy_to(server.socket) as proxy, clients_of(proxy.url) as clients:
        silent = {"tick": 1, "BZPOPMIN": 1}

        def on_call(called: str, command: list[bytes]) -> Fault:
            if silent.get(called, 0) == 0:
                return None
            silent[called] -= 1
            return Cut.HOLD

        proxy.on_call = on_call
        began = time.monotonic()
        await asyncio.gather(by_line(clients), by_reader(clients))
        assert time.monotonic() - began < 5
        silent["tick"] = 1
        with pytest.raises(BrokerUnavailable):
            await asyncio.to_thread(clients.beats.run, clients.call())
        await by_beats(clients)


async def test_a_broker_that_stands_still_with_its_connections_open_is_noticed_and_found_again(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    async with clients_of(server.url) as clients:
        await asyncio.gather(by_line(clients), by_reader(clients), by_beats(clients))
        server.send(signal.SIGSTOP)
        began = time.monotonic()
        with pytest.raises(BrokerUnavailable):
            await asyncio.to_thread(clients.beats.run, clients.call())
        with pytest.raises(BrokerUnavailable):
            await clients.line.run(clients.call())
        assert await clients.reader.run(("BZPOPMIN", "bell", 0.1), 0.1) is None
        assert time.monotonic() - began < 5
        assert not clients.line.is_up
        server.send(signal.SIGCONT)
        await asyncio.gather(by_line(clients), by_reader(clients), by_beats(clients))
        assert clients.line.is_up
    assert len(caplog.records) <= 6


async def test_an_outage_with_every_connection_in_use_ends_with_the_outage(server: Server) -> None:
    async with clients_of(server.url) as clients:
        await asyncio.gather(by_line(clients), by_beats(clients))
        waiting = asyncio.ensure_future(by_reader(clients))
        server.send(signal.SIGSTOP)
        calls = [clients.line.run(clients.call(), patient=True) for _ in range(500)]
        calls += [clients.line.run(("SADD", "members", i), patient=True) for i in range(500)]
        flying = asyncio.gather(*calls)
        await asyncio.sleep(0.1)
        server.stop(signal.SIGKILL)
        await asyncio.sleep(1.0)
        server.start()
        await flying
        await asyncio.gather(waiting, by_beats(clients))
        assert await clients.line.run(("SCARD", "members")) == 500
        listed = (await clients.line.run(("CLIENT", "LIST"))).decode().splitlines()
        assert len(listed) <= 3, "one of each kind, and none left over"


async def test_a_block_longer_than_any_time_out_keeps_its_connection(server: Server) -> None:
    """A quiet queue stays quiet, whatever the address says of time-outs."""
    async with proxy_to(server.socket) as proxy:
        async with clients_of(f"{proxy.url}?socket_timeout=0.1") as clients:
            began = time.monotonic()
            assert await clients.reader.run(("BZPOPMIN", "bell", 1.6), 1.6) is None
            assert 1.5 < time.monotonic() - began < 2.5
            assert await clients.reader.run(("BZPOPMIN", "bell", 0.1), 0.1) is None
        assert proxy.connections == 1


async def test_connections_that_come_and_go_for_long_fill_no_log(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    """Each try succeeds, and is cut straight after: no failure is the second in a row."""
    async with proxy_to(server.socket) as proxy, clients_of(proxy.url) as clients:
        async with asyncio.timeout(10):
            while proxy.connections < 15:
                await clients.line.run(("PING",), patient=True)
                proxy.cut_all()
        assert len(caplog.records) <= 2
