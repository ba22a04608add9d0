"""Addresses of the broker, and who it turns away: through the line, a blocking reader and the beats' connection."""

from __future__ import annotations

import asyncio
import re
import socket
import subprocess
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import redis
import uvloop

from shared.errors import BrokerRefused, BrokerUnavailable, SettingsError
from shared.queue.connection import Connection
from shared.queue.keys import Keys
from shared.queue.scripts import Scripts
from shared.settings import QueueSettings
from tests.architecture.source_tree import ROOT
from tests.queue.certificates import Authority
from tests.queue.pair import FREE, INFO, pair_on, serving
from tests.queue.proxy import proxy_to
from tests.valkey_server import Server, server_binary

BUDGET_S = 0.6
PASSWORD = "p@ss/wo#rd:%"
QUOTED = "p%40ss%2Fwo%23rd%3A%25"


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


@pytest.fixture(scope="module")
def port() -> int:
    return free_port()


@pytest.fixture(scope="module")
def server(port: int) -> Iterator[Server]:
    """With users: `sluice` may do all, `reader` may only read, and a stranger nothing."""
    server = Server(extra=("--bind", "127.0.0.1", "--port", str(port))).start()
    client: Any = redis.Redis.from_url(server.url)
    client.execute_command("ACL", "SETUSER", "sluice", "on", f">{PASSWORD}", "~*", "+@all")
    client.execute_command(
        "ACL", "SETUSER", "reader", "on", f">{PASSWORD}", "~*", "+@read", "+info"
    )
    yield server
    client.close()
    server.stop()
    server.clean()


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("tls"))


@asynccontextmanager
async def connected(url: str) -> AsyncIterator[Connection]:
    connection = Connection.open(QueueSettings(redis_url=url, broker_budget_s=BUDGET_S))
    try:
        yield connection
    finally:
        await connection.close()


async def serves(url: str) -> None:
    """Real commands over all three kinds of connection; each reads what another wrote."""
    scripts = Scripts(Keys("addresses"))
    async with connected(url) as connection:
        beats = connection.sync_line()
        reader = connection.reader("waiting")
        try:
            assert (await connection.line.run(scripts.tick(15_000)))[1] == 0
            large = b"x" * (3 << 20)
            assert await connection.line.run(("SET", "large", large)) == b"OK"
            assert await connection.line.run(("GET", "large")) == large
            version = (await asyncio.to_thread(beats.run, scripts.set_prompt("be brief", "t")))[0]
            text = await connection.line.run(("HGET", scripts.keys.fixed("sys"), "t"))
            assert (int(version) > 0, text) == (True, b"be brief")
            waiting = asyncio.ensure_future(reader.run(("BZPOPMIN", "bell", 5), 5))
            await connection.line.run(("ZADD", "bell", 0, "w"))
            assert (await waiting)[1] == b"w"
        finally:
            beats.close()


async def database_of(url: str) -> bytes:
    async with connected(url) as connection:
        info: bytes = await connection.line.run(("CLIENT", "INFO"))
        return info


@pytest.mark.parametrize("login", ["", f"sluice:{QUOTED}@"])
@pytest.mark.parametrize("database", ["", "/3"])
async def test_over_tcp_with_and_without_login_and_database(
    server: Server, port: int, login: str, database: str
) -> None:
    url = f"redis://{login}127.0.0.1:{port}{database}"
    await serves(url)
    info = await database_of(url)
    assert (b" db=3 " in info) is bool(database)
    assert (b"user=sluice " in info) is bool(login)


async def test_over_a_socket_with_login_and_database(server: Server) -> None:
    url = f"unix://sluice:{QUOTED}@{server.socket}?db=2"
    await serves(url)
    info = await database_of(url)
    assert b" db=2 " in info
    assert b"user=sluice " in info


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_over_tls_by_a_certificate_of_an_authority_that_is_named(
    server: Server, authority: Authority, new_loop: Callable[[], asyncio.AbstractEventLoop]
) -> None:
    """The server of the tests has no TLS of its own: a terminator stands before it, as stunnel does."""

    async def over_tls() -> None:
        certificate, key = authority.certificate("client")
        context = authority.server_side(asks_for_client=True)
        async with proxy_to(server.socket, tls=context) as proxy:
            url = proxy.url.replace("//", f"//sluice:{QUOTED}@")
            query = f"ssl_ca_certs={authority.ca}&ssl_certfile={certificate}&ssl_keyfile={key}"
            await serves(f"{url}/4?{query}")
            assert b" db=4 " in await database_of(f"{url}/4?{query}")

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(over_tls())


def has_tls() -> bool:
    """A server without it says so at its start; one with it misses its certificate. Either ends at once."""
    command = [server_binary(), "--port", "0", "--tls-port", "1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    said = done.stdout + done.stderr
    return not any(words in said for words in ("Failed finding TLS support", "Bad directive"))


# The packaged Valkey has none: a terminator before it stands for that in the tests above. Redis 7.0 has.
@pytest.mark.skipif(not has_tls(), reason="this server was built without TLS")
async def test_over_the_tls_of_the_server_itself(authority: Authority) -> None:
    certificate, key = authority.certificate()
    port = free_port()
    tls = {"port": port, "cert-file": certificate, "key-file": key, "ca-cert-file": authority.ca}
    server = Server(extra=tuple(str(w) for k, v in tls.items() for w in (f"--tls-{k}", v)))
    try:
        server.start()
        query = f"ssl_ca_certs={authority.ca}"
        with_own = f"{query}&ssl_certfile={certificate}&ssl_keyfile={key}"
        await serves(f"rediss://localhost:{port}/1?{with_own}")
        async with connected(f"rediss://localhost:{port}?{query}") as connection:
            # Whether its alert or its reset is read first is chance, so the words are not always TLS's.
            with pytest.raises(BrokerUnavailable):
                await connection.line.run(("PING",))
    finally:
        server.stop()
        server.clean()


async def test_a_large_payload_gets_through_tls_that_is_slow(
    server: Server, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of it lies in buffers on its way, where nobody sees it move, for longer than a reply may take."""
    monkeypatch.setattr("shared.queue.line.REPLY_S", 0.3)
    async with proxy_to(server.socket, tls=authority.server_side()) as proxy:
        proxy.bytes_per_s = 4 << 20
        async with connected(f"{proxy.url}?ssl_ca_certs={authority.ca}") as connection:
            await connection.line.run(("PING",))
            began = time.monotonic()
            await connection.line.run(("SET", "slow", b"x" * (4 << 20)), patient=True)
            assert time.monotonic() - began > 0.6
        assert proxy.connections == 1


# --- turned away


async def refused_by(url: str, caplog: pytest.LogCaptureFixture) -> str:
    """What all three kinds of connection say; and that they say it seldom."""
    scripts = Scripts(Keys("addresses"))
    async with connected(url) as connection:
        beats = connection.sync_line()
        reader = connection.reader("waiting")
        patient = asyncio.ensure_future(connection.line.run(scripts.tick(15_000), patient=True))
        listening = asyncio.ensure_future(listen(reader))
        try:
            with pytest.raises(BrokerRefused) as told:
                await connection.line.run(scripts.tick(15_000))
            for _ in range(3):
                with pytest.raises(BrokerRefused) as beaten:
                    await asyncio.to_thread(beats.run, scripts.tick(15_000))
            assert not patient.done(), "what must not be lost waits until the address is mended"
            assert not listening.done()
        finally:
            for task in (patient, listening):
                task.cancel()
            await asyncio.gather(patient, listening, return_exceptions=True)
            beats.close()
    lines = [record.getMessage() for record in caplog.records]
    assert 1 <= len([line for line in lines if "REDIS_URL" in line]) <= 2, lines
    said = "\n".join([*lines, str(told.value), str(beaten.value)])
    assert told.value.message.startswith("REDIS_URL: ")
    assert beaten.value.message.startswith("REDIS_URL: ")
    for secret in (PASSWORD, QUOTED, "wo#rd", "hunter2"):
        assert secret not in said
    return str(told.value)


async def listen(reader: Any) -> None:
    while True:
        assert await reader.run(("BZPOPMIN", "bell", 1), 1) is None


async def test_a_wrong_password_is_told_by_the_settings_name(
    server: Server, port: int, caplog: pytest.LogCaptureFixture
) -> None:
    told = await refused_by(f"redis://sluice:hunter2@127.0.0.1:{port}", caplog)
    assert "refuses its user or password" in told


async def test_a_missing_password_is_told(caplog: pytest.LogCaptureFixture) -> None:
    server = Server(extra=("--requirepass", "something"))
    server.url = f"unix://:something@{server.socket}"
    server.start()
    try:
        told = await refused_by(f"unix://{server.socket}", caplog)
        assert "Authentication required" in told
    finally:
        server.stop()
        server.clean()


async def test_a_user_without_permission_is_told(
    server: Server, port: int, caplog: pytest.LogCaptureFixture
) -> None:
    told = await refused_by(f"redis://reader:{QUOTED}@127.0.0.1:{port}", caplog)
    assert "lacks a permission" in told


@pytest.mark.parametrize("over", ["tcp", "socket"])
async def test_a_database_that_is_not_there_is_told(server: Server, port: int, over: str) -> None:
    url = f"redis://127.0.0.1:{port}/4711" if over == "tcp" else f"{server.url}?db=4711"
    async with connected(url) as connection:
        with pytest.raises(BrokerRefused, match=r"REDIS_URL: .*out of range"):
            await connection.line.run(("PING",))


async def test_a_certificate_of_nobody_that_is_trusted_is_told(
    server: Server, authority: Authority, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    other = Authority(tmp_path, "somebody else")
    async with proxy_to(server.socket, tls=authority.server_side()) as proxy:
        told = await refused_by(f"{proxy.url}?ssl_ca_certs={other.ca}", caplog)
    assert "CERTIFICATE_VERIFY_FAILED" in told


async def test_a_password_that_is_mended_lets_what_waited_through(server: Server) -> None:
    client: Any = redis.Redis.from_url(server.url)
    client.execute_command("ACL", "SETUSER", "late", "on", ">other", "~*", "+@all")
    async with connected(f"unix://late:right@{server.socket}") as connection:
        waiting = asyncio.ensure_future(connection.line.run(("PING",), patient=True))
        with pytest.raises(BrokerRefused):
            await connection.line.run(("PING",))
        client.execute_command("ACL", "SETUSER", "late", ">right")
        assert await waiting == b"PONG"
    client.close()


async def test_rights_that_are_given_later_let_what_waited_through(server: Server) -> None:
    client: Any = redis.Redis.from_url(server.url)
    client.execute_command("ACL", "SETUSER", "newcomer", "on", ">x", "~*", "+@read")
    async with connected(f"unix://newcomer:x@{server.socket}") as connection:
        waiting = asyncio.ensure_future(connection.line.run(("SET", "k", "v"), patient=True))
        with pytest.raises(BrokerRefused):
            await connection.line.run(("SET", "k", "w"))
        client.execute_command("ACL", "SETUSER", "newcomer", "+@all")
        assert await waiting == b"OK"
    client.close()


# --- addresses that stop a start


@pytest.mark.parametrize(
    "url",
    [
        "redis://sluice:hun/ter2@127.0.0.1:6379",  # not quoted: all from the slash on is a path
        "redis://sluice:hunter2@127.0.0.1:65536000",
        "redis://[sluice:hunter2@127.0.0.1",
        "redis://sluice:hunter2@127.0.0.1/?unheard_of=hunter2",
        "rediss://sluice:hunter2@127.0.0.1/?ssl_cert_reqs=hunter2",
        "redis://sluice:hunter2@127.0.0.1/?max_connections=hunter2",
        "http://sluice:hunter2@127.0.0.1",
        "rediss://sluice:hunter2@127.0.0.1/?ssl_ca_certs=/not/there.pem",
    ],
)
def test_an_address_that_is_none_stops_the_start_and_tells_no_secret(url: str) -> None:
    with pytest.raises(SettingsError) as told:
        Connection.open(QueueSettings(redis_url=url))
    text = f"{told.value} {told.value.__cause__!r} {told.value.__suppress_context__}"
    assert told.value.message.startswith("REDIS_URL: ")
    for piece in ("hun", "ter2"):
        assert piece not in text


# --- rights


async def test_the_rights_that_the_operations_page_names_are_enough(
    queue_name: str, server: Server
) -> None:
    page = (ROOT / "docs" / "operations.md").read_text("utf-8")
    (words,) = re.findall(r"^ACL SETUSER sluice on >password (.+)$", page, re.MULTILINE)
    client: Any = redis.Redis.from_url(server.url)
    client.execute_command("ACL", "SETUSER", "few", "on", ">x", *words.split())
    denied = denials(client)
    url = f"unix://few:x@{server.socket}"
    async with pair_on(url, queue_name, require_persistence=True) as pair, serving(pair):
        with pytest.raises(BrokerUnavailable, match="nothing on disk"):  # so it may ask
            await pair.producer.submit(pair.req(), FREE)
    async with pair_on(url, queue_name) as pair:
        parent, cancelled = pair.req(), pair.req("c")
        await pair.producer.submit(cancelled, FREE, watch=True)
        grant = await pair.claimed()
        await pair.producer.cancel(cancelled.id)
        beat = await asyncio.to_thread(pair.consumer.beat, {grant.id: (grant.token, True)}, INFO)
        assert beat.lost == [cancelled.id]
        async with serving(pair):
            await pair.producer.submit_list(parent, pair.children(parent, 3), FREE, watch=True)
            assert (await pair.producer.wait(parent.id, 10)).outcome.n_children == 3
        await pair.producer.drop(parent.id)
        await pair.producer.set_system_prompt("be brief", "an operator")
        assert (await pair.producer.system_prompt())[0] == "be brief"
        assert (await pair.producer.stats()).live == 0
        await pair.consumer.leave()
    assert denials(client) == denied
    async with connected(url) as connection:
        with pytest.raises(BrokerRefused):
            await connection.line.run(("FLUSHALL",))
    client.close()


def denials(client: Any) -> int:
    return int(client.info("errorstats").get("errorstat_NOPERM", {"count": 0})["count"])
