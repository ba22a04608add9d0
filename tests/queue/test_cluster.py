"""On a server in cluster mode, where a script that reaches for a key of another slot fails. One node holds all slots.

Beside that the server is told to let each call touch the keys that it declares, and no others.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from typing import Any

import pytest
import redis

from shared.queue.consumer import Finished
from shared.queue.loader import NAMES
from shared.queue.scripts import Call
from shared.request import Body
from tests.queue.harness import Shard
from tests.queue.pair import FREE, INFO, pair_on, serving
from tests.queue.test_twice import ROWS, check_twice_is_as_once
from tests.valkey_server import Server

USER = "scripts"


@pytest.fixture(scope="module")
def cluster() -> Iterator[Server]:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    # Nodes of a cluster talk over TCP; this one has nobody to talk to.
    extra = ("--cluster-enabled", "yes", "--cluster-port", str(port), "--bind", "127.0.0.1")
    server = Server(extra=extra).start()
    client: Any = redis.Redis.from_url(server.url)
    client.execute_command("CLUSTER", "ADDSLOTSRANGE", 0, 16383)
    until = time.monotonic() + 20
    while b"cluster_state:ok" not in client.execute_command("CLUSTER", "INFO"):
        assert time.monotonic() < until
        time.sleep(0.02)
    client.execute_command("ACL", "SETUSER", USER, "on", ">password", "+@all")
    client.close()
    yield server
    server.stop()
    server.clean()


class Confined(Shard):
    """Every call is made by a user who may touch the call's own keys alone."""

    def __init__(self, server: Server, queue: str) -> None:
        super().__init__(redis.Redis.from_url(server.url), queue)
        self._keeper: Any = self.client
        self._confined: Any = redis.Redis.from_url(server.url, username=USER, password="password")

    def run(self, call: Call) -> Any:
        rights = (f"~{key}" for key in call.keys)
        self._keeper.execute_command("ACL", "SETUSER", USER, "resetkeys", *rights)
        self.client = self._confined
        try:
            return super().run(call)
        finally:
            self.client = self._keeper

    def refused(self) -> list[Any]:
        """What calls reached for in vain, those that went on all the same included."""
        log: list[Any] = self._keeper.execute_command("ACL", "LOG")
        return log

    def close(self) -> None:
        self._keeper.execute_command("ACL", "LOG", "RESET")
        self._confined.close()
        self._keeper.close()


@pytest.fixture
def confined(cluster: Server, queue_name: str) -> Iterator[Confined]:
    shard = Confined(cluster, queue_name)
    shard.advance(1)
    yield shard
    shard.check()
    shard.close()


@pytest.mark.parametrize("name", NAMES)
def test_a_script_keeps_to_one_slot_and_to_the_keys_that_it_declares(
    confined: Confined, name: str
) -> None:
    check_twice_is_as_once(confined, ROWS[name], name)
    assert confined.refused() == []


def test_the_server_refuses_what_is_of_another_slot_or_not_declared(confined: Confined) -> None:
    """So that the test above tells of something."""
    own, tag = confined.keys.fixed("x"), confined.keys.prefix
    for key in (f"{tag}:y", f"{tag[:-1]}1}}:x"):
        with pytest.raises(redis.ResponseError):
            confined._confined.eval("#!lua\nreturn redis.call('SET', ARGV[1], 1)", 1, own, key)
    assert confined.refused()


async def test_both_halves_serve_and_cancel_on_a_cluster(cluster: Server, queue_name: str) -> None:
    """A cancel needs no pub/sub: a key of the request's slot tells its worker."""
    async with pair_on(cluster.url, queue_name) as pair:
        req = pair.req("x")
        await pair.producer.submit(req, FREE, watch=True)
        grant = await pair.claimed()
        assert pair.consumer.beat({grant.id: (grant.token, True)}, INFO).lost == []
        await pair.producer.cancel(req.id)
        news = await pair.consumer.wait_for_work(5, wants_work=False)
        assert news.ended == [req.id]
        assert await pair.answer(grant) is Finished.LOST
        assert (await pair.producer.wait(req.id, 5)).outcome.status == "cancelled"
        other = pair.req("y")
        await pair.producer.submit(other, FREE, watch=True)
        async with serving(pair):
            assert (await pair.producer.wait(other.id, 5)).body == Body(text="A(y)")
