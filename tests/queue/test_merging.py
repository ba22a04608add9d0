"""Several runs of one script in one command: each caller has its own reply, and an error costs its own run alone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from itertools import pairwise
from typing import Any

import pytest
import redis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from redis.exceptions import ResponseError

from shared.errors import BrokerUnavailable
from shared.queue import merging
from shared.queue.connection import Connection
from shared.queue.keys import Keys
from shared.queue.scripts import Call, Scripts
from shared.queue.snapshot import Caps
from shared.request import Body
from shared.settings import QueueSettings
from tests.protocol.invariants import check_state
from tests.protocol.reader import Reader
from tests.queue.harness import START_MS
from tests.queue.pair import pair_on
from tests.valkey_server import Server

META = [1, "t", 1, 60_000, 60_000, "", "{}", "d", [], "", "", 0, 1, 0]
NO_CAPS = (0, 0, 0, 0)


@pytest.fixture
async def connection(broker_url: str) -> AsyncIterator[Connection]:
    connection = Connection.open(QueueSettings.load(redis_url=broker_url))
    yield connection
    await connection.close()


@pytest.fixture
def scripts(queue_name: str) -> Scripts:
    return Scripts(Keys(queue_name))


def runs(calls: list[Any]) -> list[list[int]]:
    return list(merging.runs(calls, map(merging.size_of, calls)))


def submits(scripts: Scripts, n: int, payload: bytes = b"p", start: int = 0) -> list[Call]:
    return [scripts.submit(f"q.0-{i:04d}", payload, META, NO_CAPS) for i in range(start, start + n)]


async def verdicts(connection: Connection, calls: list[Call]) -> list[Any]:
    replies = await asyncio.gather(*map(connection.line.run, calls), return_exceptions=True)
    return [reply if isinstance(reply, BaseException) else reply[0] for reply in replies]


async def n_runs(connection: Connection) -> int:
    """Of EVALSHA, since the statistics were last reset."""
    info = (await connection.line.run(("INFO", "commandstats"))).decode()
    rows = [row for row in info.splitlines() if row.startswith("cmdstat_evalsha:")]
    return int(rows[0].partition("calls=")[2].partition(",")[0]) if rows else 0


async def test_a_burst_of_submits_is_a_few_commands_and_each_has_its_own_reply(
    connection: Connection, scripts: Scripts
) -> None:
    await verdicts(connection, submits(scripts, 4))
    await connection.line.run(("CONFIG", "RESETSTAT"))
    burst = submits(scripts, 20)
    assert await verdicts(connection, burst) == [b"DUP"] * 4 + [b"OK"] * 16
    # The first goes at once, as nothing was under way; then two full bursts, and the rest with the loop's next turn.
    assert await n_runs(connection) == 4
    assert await verdicts(connection, burst) == [b"DUP"] * 20


async def test_what_a_burst_submits_is_what_single_submits_do(
    connection: Connection, scripts: Scripts
) -> None:
    other = Scripts(Keys("other"))
    await verdicts(connection, submits(scripts, 10))
    for call in submits(other, 10):
        await connection.line.run(call)
    for name in ("ready:1", "when", "live", "in"):
        sizes = []
        for keys in (scripts.keys, other.keys):
            size = {"live": "HLEN", "in": "XLEN"}.get(name, "ZCARD")
            sizes.append(await connection.line.run((size, keys.fixed(name))))
        assert sizes == [10, 10], name
    await connection.line.run(("FLUSHALL",))


async def test_an_error_in_one_run_is_no_error_of_its_neighbours(
    connection: Connection, scripts: Scripts
) -> None:
    await connection.line.run(("RPUSH", scripts.keys.outcome("q.0-0003"), "no string"))
    replies = await verdicts(connection, submits(scripts, 6))
    assert [reply for i, reply in enumerate(replies) if i != 3] == [b"OK"] * 5
    assert isinstance(replies[3], ResponseError)
    assert "WRONGTYPE" in str(replies[3])


async def test_a_server_that_lost_its_scripts_is_given_the_one_for_several(
    connection: Connection, scripts: Scripts
) -> None:
    await verdicts(connection, submits(scripts, 8))
    await connection.line.run(("SCRIPT", "FLUSH"))
    assert await verdicts(connection, submits(scripts, 8, start=8)) == [b"OK"] * 8


async def test_an_argument_that_cannot_be_sent_costs_its_own_call_alone(
    connection: Connection, scripts: Scripts
) -> None:
    calls = submits(scripts, 5)
    calls[2] = scripts.submit("q.0-\ud800", b"p", META, NO_CAPS)
    replies = await verdicts(connection, calls)
    assert isinstance(replies[2], UnicodeEncodeError)
    assert [reply for i, reply in enumerate(replies) if i != 2] == [b"OK"] * 4


async def test_what_goes_before_and_after_one_that_cannot_be_sent_gets_its_own_reply(
    connection: Connection, scripts: Scripts
) -> None:
    await connection.line.run(("SET", "another tenant's", "secret"))
    calls: list[Any] = [("GET", "another tenant's"), *submits(scripts, 5), ("ECHO", "last")]
    calls[2] = scripts.submit("q.0-\ud800", b"p", META, NO_CAPS)
    # Something is under way, so that all of these share one write.
    first = connection.line.run(("PING",))
    replies = await asyncio.gather(*map(connection.line.run, calls), return_exceptions=True)
    assert await first == b"PONG"
    assert isinstance(replies.pop(2), UnicodeEncodeError)
    assert replies[0] == b"secret"
    assert [reply[0] for reply in replies[1:5] if isinstance(reply, list)] == [b"OK"] * 4
    assert replies[5] == b"last"


async def test_a_full_broker_refuses_every_submit_of_a_burst(queue_name: str) -> None:
    server = Server(extra=("--maxmemory", "1")).start()
    connection = Connection.open(QueueSettings.load(redis_url=server.url))
    try:
        replies = await verdicts(connection, submits(Scripts(Keys(queue_name)), 6))
        assert all(isinstance(reply, BrokerUnavailable) for reply in replies)
    finally:
        await connection.close()
        server.stop()
        server.clean()


def test_shards_and_other_scripts_are_not_put_together() -> None:
    one, other = Scripts(Keys("q", 0)), Scripts(Keys("q", 1))
    calls = [*submits(one, 2), *submits(other, 2), one.peek("q.0-a"), one.peek("q.0-b"), ("PING",)]
    assert runs(calls) == [[0, 1], [2, 3], [4], [5], [6]]


def test_large_payloads_do_not_pile_up_in_one_command() -> None:
    calls = submits(Scripts(Keys("q")), 5, payload=bytes(merging.MOST_BYTES // 2))
    assert all(len(run) <= 2 for run in runs(calls))


@given(st.lists(st.sampled_from(("submit", "peek", "ping")), max_size=120))
def test_every_call_goes_once_and_in_order(kinds: list[str]) -> None:
    scripts = Scripts(Keys("q"))
    submit, peek = submits(scripts, 1)[0], scripts.peek("q.0-a")
    calls = [{"submit": submit, "peek": peek, "ping": ("PING",)}[kind] for kind in kinds]
    all_runs = runs(calls)
    assert [place for run in all_runs for place in run] == list(range(len(calls)))
    for run in all_runs:
        assert 1 <= len(run) <= merging.MOST
        assert len(run) == 1 or all(calls[place] is submit for place in run)
    for before, after in pairwise(all_runs):
        both_submit = calls[before[-1]] is submit and calls[after[0]] is submit
        assert not both_submit or len(before) == merging.MOST


async def test_the_ends_of_a_burst_are_few_entries_of_the_result_stream_and_each_is_delivered(
    broker_url: str, queue_name: str
) -> None:
    async with pair_on(broker_url, queue_name) as pair:
        reqs = [pair.req(f"{i}") for i in range(20)]
        await asyncio.gather(*(pair.producer.submit(req, Caps(), watch=True) for req in reqs))
        grants = (await pair.consumer.claim(20, is_idle=True)).grants
        await asyncio.gather(*map(pair.answer, grants))
        for i, req in enumerate(reqs):
            assert (await pair.producer.wait(req.id, 5)).body == Body(text=f"A({i})")
        connection = Connection.open(pair.settings)
        out = Keys(queue_name).out(pair.producer.api_id)
        assert await connection.line.run(("XLEN", out)) <= 6, "with the one that it began with"
        await connection.close()


class Both:
    """The same calls on two queues of one server, on one of them several to a command."""

    def __init__(self, client: Any, queue: str) -> None:
        self.client = client
        self.alone, self.merged = (Scripts(Keys(f"{queue}{i}"), START_MS) for i in range(2))

    def run(self, make: Callable[[Scripts], list[Call]]) -> list[Any]:
        one_by_one = [self._sent(call) for call in make(self.alone)]
        calls = make(self.merged)
        together: list[Any] = []
        for places in runs(calls):
            part = [calls[place] for place in places]
            reply = self._sent(merging.merged(part) if len(part) > 1 else part[0])
            together += reply if len(part) > 1 else [reply]
        assert together == one_by_one
        return one_by_one

    def _sent(self, call: Call) -> Any:
        return self.client.execute_command(*call.loading_command)

    def check(self) -> None:
        alone, merged = (Reader(self.client, s.keys).read() for s in (self.alone, self.merged))
        check_state(merged)
        assert alone == merged


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    st.lists(
        st.tuples(st.sampled_from("abcdefgh"), st.sampled_from("tu"), st.integers(0, 9)),
        max_size=16,
    ),
    st.lists(st.tuples(st.integers(0, 9), st.booleans()), max_size=12),
    st.integers(0, 40),
)
def test_what_one_command_leaves_behind_is_what_one_by_one_would(
    broker_url: str,
    queue_name: str,
    wishes: list[tuple[str, str, int]],
    ends: list[tuple[int, bool]],
    most_tokens: int,
) -> None:
    """Ids that come twice, two tenants, a cap that some meet, requests that wait for one before; then their ends, some
    of them told twice."""
    client = redis.Redis.from_url(broker_url)
    client.delete(*(client.keys(f"*{queue_name}*") or ["none"]))
    both = Both(client, queue_name)
    both.run(lambda s: [s.tick(15_000, "api")])

    def submits(s: Scripts) -> list[Call]:
        calls = []
        for name, tenant, tokens in wishes:
            before = ["q.0-a"] if name > "e" and tenant == "t" else []
            meta = [1, tenant, tokens, 60_000, 60_000, "api", "{}", "d", before, "", "", 0, 1, 0]
            calls.append(s.submit(f"q.0-{name}", b"p", meta, (0, most_tokens, 0, 0)))
        return calls

    both.run(submits)
    both.check()
    (claimed,) = both.run(lambda s: [s.claim("w", 1, 6, 1 << 20, 15_000, True, 64)])
    grants = claimed[5:]
    if not grants:
        return

    def finishes(s: Scripts) -> list[Call]:
        calls = []
        for number, is_finished in ends:
            rid, token = (part.decode() for part in grants[number % len(grants)][:2])
            what = ("F", "", "") if is_finished else ("E", "engine_error", "why")
            lives = (60_000, 30_000, 1024)
            calls.append(
                s.finish(
                    rid, "w", token, *what, "{}", b"body", *lives, ["api"], "", letters_max_bytes=0
                )
            )
        return calls

    both.run(finishes)
    both.check()
