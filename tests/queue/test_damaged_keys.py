"""A key of the queue that somebody has overwritten, with another type in it for a while."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import redis

from shared.queue import merging
from tests.queue.harness import LETTERS_MAX_BYTES, TTL_MS, Shard


@contextmanager
def damaged(shard: Shard, name: str) -> Iterator[None]:
    """A key of another type while this lasts; what it held comes back."""
    key = name if name.startswith("sl:") else shard.keys.fixed(name)
    if shard.client.exists(key):
        shard.client.rename(key, f"{key}-away")
    shard.client.set(key, "no such thing")
    yield
    shard.client.delete(key)
    if shard.client.exists(f"{key}-away"):
        shard.client.rename(f"{key}-away", key)


def tried(shard: Shard, call: Any) -> Any:
    try:
        return shard.run(call)
    except redis.ResponseError as error:
        return error


@pytest.mark.parametrize("name", ["tags", "lease", "ready:1", "stat"])
def test_what_a_failing_claim_looked_at_can_be_claimed_afterwards(shard: Shard, name: str) -> None:
    for i in range(4):
        shard.submit(f"q.0-{i}")
    with damaged(shard, name):
        tried(shard, shard.scripts.claim("w1", 1, 4, 1 << 20, 15_000, True, 8))
    shard.advance(40_000)
    shard.reap()
    again = shard.claim("w2", 4)[5:]
    assert sorted(grant[0] for grant in again) == [f"q.0-{i}".encode() for i in range(4)]


def test_turns_that_cannot_be_read_keep_nothing_from_becoming_ready(shard: Shard) -> None:
    shard.submit("q.0-a")
    shard.submit("q.0-later", not_before_ms=1000)
    shard.submit("q.0-after", depends=["q.0-a"])
    rid, token = shard.grant()
    shard.advance(1000)
    with damaged(shard, "tags"):
        tried(shard, shard.scripts.promote(10))
        with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
            shard.finish(rid, token)
    assert [shard.state(f"q.0-{name}") for name in ("a", "later", "after")] == ["F", "Q", "Q"]


def test_a_lane_that_is_none_keeps_no_end_from_being_whole(shard: Shard) -> None:
    shard.submit("q.0-a")
    shard.submit("q.0-after", depends=["q.0-a"])
    rid, token = shard.grant()
    with damaged(shard, "ready:1"):
        with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
            shard.finish(rid, token)
        with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
            shard.submit("q.0-new")
    assert shard.finish(rid, token) == [b"ALREADY"]
    assert shard.state("q.0-a") == "F"
    for other in ("q.0-after", "q.0-new"):
        assert shard.state(other) == "Q", "known, and its caller may end it"
        assert shard.end(other, "cancel")[0] == b"OK"
    assert shard.client.hget(shard.keys.fixed("ten"), "r") == b"0"


@pytest.mark.parametrize("how", ["release", "retry", "suspect"])
def test_a_worker_may_give_back_thousands_at_once(shard: Shard, how: str) -> None:
    n = 4200
    held = []
    for start in range(0, n, 1000):
        calls = []
        for i in range(start, min(n, start + 1000)):
            meta = [1, "t", 1, 600_000, 600_000, "", "{}", "d", [], "", "", 0, 1, 0]
            calls.append(shard.scripts.submit(f"q.0-{i:04}", b"p", meta, (0, 0, 0, 0)))
        shard.run(calls[0])
        pipe = shard.client.pipeline(transaction=False)
        for call in calls[1:]:
            pipe.execute_command(*call.command)
        pipe.execute()
        grants = shard.claim("w1", 1024, slots=1 << 16)[5:]
        held += [(grant[0].decode(), grant[1].decode()) for grant in grants]
    call = shard.scripts.nack("w1", how, "why", held, max_attempts=3, max_crashes=2, delay_ms=500)
    assert shard.run(call) == [b"OK"] * n
    assert shard.record("q.0-0007") is not None
    assert {shard.state(rid) for rid, _ in held} == {"L" if how == "retry" else "Q"}


def test_a_result_stream_that_is_none_costs_its_own_reader_the_notice_and_nobody_else_anything(
    shard: Shard,
) -> None:
    calls = []
    for name in "abcd":
        shard.api(f"api-{name}")
        shard.submit(f"q.0-{name}", api=f"api-{name}")
    for grant in shard.claim(n=4)[5:]:
        rid, token = grant[0].decode(), grant[1].decode()
        what = ("F", "", "", "{}", b"body", TTL_MS, TTL_MS, 1024)
        apis = [f"api-{rid[-1]}"]
        calls.append(
            shard.scripts.finish(
                rid, "w1", token, *what, apis, "", letters_max_bytes=LETTERS_MAX_BYTES
            )
        )
    with damaged(shard, shard.keys.out("api-b")):
        replies = shard.run(merging.merged(calls))
        assert [reply[0] for reply in replies] == [b"OK"] * 4
    assert [shard.notices(f"api-{name}") for name in "acd"] == [["q.0-a"], ["q.0-c"], ["q.0-d"]]
    assert shard.state("q.0-b") == "F"


def test_a_counter_that_is_no_number_is_told_and_costs_no_ring_of_the_bell(shard: Shard) -> None:
    shard.client.hset(shard.keys.fixed("stat"), "submitted", "many")
    with pytest.raises(redis.ResponseError, match="not an integer"):
        shard.submit("q.0-a")
    assert shard.state("q.0-a") == "Q"
    assert shard.client.exists(shard.keys.fixed("bell"))
    assert shard.submit("q.0-a")[0] == b"DUP"
    shard.client.hdel(shard.keys.fixed("stat"), "submitted")
    shard.end("q.0-a", "cancel")
