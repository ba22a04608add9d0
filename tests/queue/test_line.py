"""The line of script calls over a real server that drops, refuses, forgets and stalls."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import redis

from shared.errors import BrokerUnavailable
from shared.queue.connection import Connection
from shared.queue.line import Line
from shared.settings import QueueSettings
from tests.valkey_server import Server

BUDGET_S = 2.0


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server().start()
    yield server
    server.stop()
    server.clean()


@asynccontextmanager
async def line_to(url: str) -> AsyncIterator[Line]:
    connection = Connection.open(QueueSettings(redis_url=url, broker_budget_s=BUDGET_S))
    try:
        yield connection.line
    finally:
        await connection.close()


def client_of(server: Server) -> Any:
    return redis.Redis.from_url(server.url)


async def test_replies_go_to_their_calls(server: Server) -> None:
    async with line_to(server.url) as line:
        calls = [line.run(("ECHO", str(i))) for i in range(1000)]
        assert await asyncio.gather(*calls) == [str(i).encode() for i in range(1000)]


async def test_a_refused_call_fails_alone(server: Server) -> None:
    async with line_to(server.url) as line:
        calls = [line.run(c) for c in (("SET", "k", "v"), ("LPUSH", "k", 1), ("GET", "k"))]
        replies = await asyncio.gather(*calls, return_exceptions=True)
        assert replies[0] == b"OK"
        assert isinstance(replies[1], redis.ResponseError)
        assert replies[2] == b"v"


async def test_a_call_that_cannot_be_written_fails_alone(server: Server) -> None:
    async with line_to(server.url) as line:
        await line.run(("PING",))
        calls = [line.run(("ECHO", text)) for text in ("a", "half \ud83d", "b")]
        replies = await asyncio.gather(*calls, return_exceptions=True)
        assert (replies[0], replies[2]) == (b"a", b"b")
        assert isinstance(replies[1], UnicodeEncodeError)
        assert await line.run(("ECHO", "c")) == b"c"


async def test_a_slow_broker_that_answers_is_not_dropped(server: Server) -> None:
    async with line_to(server.url) as line:
        # Older servers answer only after all that one read took in, which is some 200 of these.
        slow = "redis.call('INCR', 'runs') for i = 1, 40000 do end return 1"
        calls = [line.run(("EVAL", slow, 0), patient=True) for _ in range(2500)]
        assert await asyncio.gather(*calls) == [1] * 2500
        assert await line.run(("GET", "runs")) == b"2500"


async def test_a_broker_without_room_is_waited_for_by_patient_calls_alone(server: Server) -> None:
    async with line_to(server.url) as line:
        client, own_id = client_of(server), await line.run(("CLIENT", "ID"))
        client.config_set("maxmemory", 1)
        patient = asyncio.ensure_future(line.run(("SET", "k", "v"), patient=True))
        with pytest.raises(BrokerUnavailable, match="takes no writes"):
            await line.run(("SET", "k", "w"))
        assert await line.run(("GET", "k")) is None
        assert not patient.done()
        client.config_set("maxmemory", 0)
        assert await patient == b"OK"
        assert await line.run(("CLIENT", "ID")) == own_id
        client.close()


async def test_what_a_dropped_connection_owed_is_asked_for_again(server: Server) -> None:
    async with line_to(server.url) as line:
        own_id = await line.run(("CLIENT", "ID"))
        client = client_of(server)
        client.execute_command("CLIENT", "PAUSE", 60_000, "WRITE")  # so that these are under way
        writes = [asyncio.ensure_future(line.run(("SADD", "members", i))) for i in range(300)]
        while [c["qbuf"] for c in client.client_list(client_id=[own_id])] == ["0"]:
            await asyncio.sleep(0.01)
        client.client_kill_filter(_id=own_id)
        client.client_unpause()
        replies = await asyncio.gather(*writes)
        assert all(reply in (0, 1) for reply in replies)
        assert client.scard("members") == 300
        client.close()


async def test_a_cancelled_caller_takes_nobody_elses_reply(server: Server) -> None:
    async with line_to(server.url) as line:
        leaving = [asyncio.ensure_future(line.run(("ECHO", "gone"))) for _ in range(50)]
        staying = [asyncio.ensure_future(line.run(("ECHO", str(i)))) for i in range(50)]
        await asyncio.sleep(0)
        for task in leaving:
            task.cancel()
        assert await asyncio.gather(*staying) == [str(i).encode() for i in range(50)]


async def test_a_replica_is_waited_out(server: Server) -> None:
    async with line_to(server.url) as line:
        client = client_of(server)
        client.execute_command("REPLICAOF", "127.0.0.1", "1")
        writing = asyncio.ensure_future(line.run(("SET", "k", "v"), patient=True))
        while line.is_up or client.info("stats")["total_error_replies"] < 2:
            assert not writing.done()
            await asyncio.sleep(0.02)
        client.execute_command("REPLICAOF", "NO", "ONE")
        assert await writing == b"OK"
        client.close()


async def test_a_replica_that_stays_one_is_an_error_within_the_budget(server: Server) -> None:
    async with line_to(server.url) as line:
        client = client_of(server)
        client.execute_command("REPLICAOF", "127.0.0.1", "1")
        with pytest.raises(BrokerUnavailable):
            async with asyncio.timeout(BUDGET_S + 1):
                await line.run(("SET", "k", "v"))
        client.close()


async def test_a_payload_that_a_stopped_broker_never_takes_in_is_an_error_within_the_budget(
    server: Server,
) -> None:
    async with line_to(server.url) as line:
        await line.run(("PING",))
        server.send(signal.SIGSTOP)
        payload = b"x" * (16 << 20)
        calls = [line.run(("SET", f"k{i}", payload)) for i in range(3)]
        async with asyncio.timeout(BUDGET_S + 1):
            failures = await asyncio.gather(*calls, return_exceptions=True)
        assert all(isinstance(failure, BrokerUnavailable) for failure in failures)
        assert not line.is_up
        server.send(signal.SIGCONT)
        assert await line.run(("PING",), patient=True) == b"PONG"
        assert line.is_up


async def test_patient_calls_outlast_a_restart(server: Server) -> None:
    async with line_to(server.url) as line:
        await line.run(("PING",))
        server.stop(signal.SIGKILL)
        patient = [asyncio.ensure_future(line.run(("INCR", "n"), patient=True)) for _ in range(5)]
        with pytest.raises(BrokerUnavailable):
            await line.run(("PING",))
        server.start()
        assert sorted(await asyncio.gather(*patient)) == [1, 2, 3, 4, 5]


async def test_closing_ends_every_call(server: Server) -> None:
    async with line_to(server.url) as line:
        await line.run(("PING",))
        server.send(signal.SIGSTOP)
        waiting = asyncio.ensure_future(line.run(("PING",), patient=True))
        await asyncio.sleep(0)
    with pytest.raises(BrokerUnavailable):
        await waiting
    server.send(signal.SIGCONT)


async def test_closing_while_nobody_listens_ends_every_call(server: Server) -> None:
    server.stop()
    async with line_to(server.url) as line:
        waiting = asyncio.ensure_future(line.run(("PING",), patient=True))
        with pytest.raises(BrokerUnavailable):
            await line.run(("PING",))
    with pytest.raises(BrokerUnavailable):
        await waiting
    server.start()


async def test_a_closed_line_stays_closed(server: Server) -> None:
    async with line_to(server.url) as line:
        await line.run(("PING",))
    with pytest.raises(BrokerUnavailable):
        await line.run(("PING",))
    client = client_of(server)
    while len(client.client_list()) > 1:
        await asyncio.sleep(0.01)
    client.close()


async def test_callers_who_left_while_nobody_listens_are_not_called_for(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.stop()
    tries = 0

    async def refused(*args: Any) -> Any:
        nonlocal tries
        tries += 1
        raise ConnectionRefusedError

    monkeypatch.setattr("shared.queue.line.Wire.open", refused)
    async with line_to(server.url) as line:
        waiting = asyncio.ensure_future(line.run(("PING",), patient=True))
        while not tries:
            await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        before = tries
        with pytest.raises(BrokerUnavailable):
            await line.run(("PING",))
        assert tries - before < 12  # as the backoff allows
    server.start()
