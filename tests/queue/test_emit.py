"""emit and attach: pieces of a running text, told to readers and kept in its part."""

from __future__ import annotations

import pytest
import redis

from tests.queue.harness import Shard

RID = "q.0-a"


@pytest.fixture
def token(shard: Shard) -> str:
    """Of RID, which runs at w1 for the front door `api`."""
    shard.api("api")
    shard.submit(RID, api="api")
    token = shard.grant()[1]
    shard.start(RID, token)
    return token


def test_a_piece_is_told_to_its_reader_and_kept(shard: Shard, token: str) -> None:
    assert shard.emit(RID, token, 0, "Hello") == ["OK"]
    assert shard.emit(RID, token, 5, " world") == ["OK"]
    assert shard.chunks("api") == [(RID, "1/0", "Hello"), (RID, "1/5", " world")]
    assert shard.part(RID) == {"1-1": "Hello", "1-6": " world"}


def test_one_call_brings_pieces_of_several_requests_each_fenced_by_itself(
    shard: Shard, token: str
) -> None:
    shard.submit("q.0-b", api="api")
    _, other = shard.grant()
    pieces = [(RID, token, 0, "a"), ("q.0-b", "9-9", 0, "x"), ("q.0-b", other, 0, "b")]
    pieces += [("q.0-none", other, 0, "x"), (RID, token, 1, "c")]
    reply = shard.run(shard.scripts.emit("w1", ["api"], pieces))
    assert reply == [[b"OK"], [b"LOST"], [b"OK"], [b"LOST"], [b"OK"]]
    told = [(RID, "1/0", "a"), ("q.0-b", "1/0", "b"), (RID, "1/1", "c")]
    assert shard.chunks("api") == told


def test_a_piece_sent_twice_changes_nothing_the_second_time(shard: Shard, token: str) -> None:
    for _ in range(2):
        assert shard.emit(RID, token, 0, "one") == ["OK"]
    shard.emit(RID, token, 3, "two")
    assert shard.emit(RID, token, 0, "one") == ["OK"]
    assert shard.part(RID) == {"1-1": "one", "1-4": "two"}
    assert [text for _, _, text in shard.chunks("api")] == ["one", "two"]


@pytest.mark.parametrize("how", ["cancelled", "lease lost", "another's", "finished"])
def test_who_does_not_own_it_any_more_tells_nothing(shard: Shard, token: str, how: str) -> None:
    if how == "cancelled":
        shard.end(RID, "cancel")
    elif how == "lease lost":
        shard.advance(16_000)
        shard.reap()
    elif how == "finished":
        shard.finish(RID, token)
    assert shard.emit(RID, token, 0, "x", "w2" if how == "another's" else "w1") == ["LOST"]
    assert shard.part(RID) == {}
    assert shard.chunks("api") == []


def test_the_next_grants_text_takes_the_place_of_the_former(shard: Shard, token: str) -> None:
    shard.emit(RID, token, 0, "once upon")
    shard.emit(RID, token, 9, " a time")
    shard.advance(16_000)
    shard.reap()
    _, second = shard.grant("w2")
    assert shard.emit(RID, second, 0, "It was", "w2") == ["OK"]
    assert shard.emit(RID, token, 16, " there", "w1") == ["LOST"]
    assert shard.part(RID) == {"2-1": "It was"}
    assert shard.chunks("api")[-1] == (RID, "2/0", "It was")


def test_the_stream_that_is_gone_is_not_made_anew_and_the_worker_told_that_nobody_reads(
    shard: Shard, token: str
) -> None:
    shard.client.delete(shard.keys.out("api"))
    assert shard.emit(RID, token, 0, "x") == ["NOBODY"]
    assert shard.client.exists(shard.keys.out("api")) == 0
    assert shard.part(RID) == {"1-1": "x"}
    shard.submit("q.0-b")
    rid, other = shard.grant()
    assert shard.emit(rid, other, 0, "x") == ["NOBODY"]


def test_a_reader_that_attached_since_is_named_and_told_from_then_on(
    shard: Shard, token: str
) -> None:
    shard.emit(RID, token, 0, "one ")
    shard.api("late")
    assert shard.attach(RID, "late") == ["OK", ("1-1", "one ")]
    assert shard.emit(RID, token, 4, "two ", apis=["api"]) == ["OK", "late"]
    assert shard.emit(RID, token, 4, "two ", apis=["api"]) == ["OK", "late"]
    # It is told how far the text is, and so that something is missing.
    assert shard.emit(RID, token, 8, "") == ["OK"]
    assert shard.emit(RID, token, 8, "three") == ["OK"]
    assert shard.chunks("late") == [(RID, "1/8", ""), (RID, "1/8", "three")]
    assert shard.part(RID) == {"1-1": "one ", "1-5": "two ", "1-9": "three"}
    shard.finish(RID, token)
    assert shard.notices("late") == shard.notices("api") == [RID]


def test_a_piece_too_long_for_a_stream_is_told_by_its_end_alone(shard: Shard, token: str) -> None:
    text = "ü𝄞" * 500
    assert shard.emit(RID, token, 0, text) == ["OK"]
    assert shard.chunks("api") == [(RID, "1/1000", "")]
    assert shard.part(RID) == {"1-1": text}


def test_the_part_keeps_the_end_of_a_long_text(shard: Shard, token: str) -> None:
    size = 1 << 15
    for i in range(12):
        assert shard.emit(RID, token, i * size, "x" * size) == ["OK"]
    kept = sum(map(len, shard.part(RID).values()))
    assert 1 << 18 <= kept <= (1 << 18) + size
    assert shard.client.memory_usage(shard.keys.part(RID)) < 1 << 20


def test_the_part_is_read_from_the_piece_that_holds_a_place(shard: Shard, token: str) -> None:
    for offset, text in ((0, "abc"), (3, "def"), (6, "ghi")):
        shard.emit(RID, token, offset, text)
    assert shard.attach(RID, "api", "1-5") == ["OK", ("1-4", "def"), ("1-7", "ghi")]
    assert shard.attach(RID, "api", "1-4", 1) == ["OK", ("1-4", "def")]
    assert shard.attach(RID, "api", "1-99") == ["OK", ("1-7", "ghi")]
    assert shard.attach(RID, "api", n=0) == ["OK"]


def test_the_part_outlives_the_request_as_long_as_its_answer(shard: Shard, token: str) -> None:
    shard.emit(RID, token, 0, "abc")
    assert shard.client.pttl(shard.keys.part(RID)) == -1
    shard.finish(RID, token)
    assert shard.attach(RID, "api") == ["GONE", ("1-1", "abc")]
    body_ms = shard.client.pttl(shard.keys.body(RID))
    assert body_ms - 1000 < shard.client.pttl(shard.keys.part(RID)) <= body_ms
    outcome = shard.outcome(RID)
    assert outcome is not None
    assert (outcome.token, outcome.grants) == (token, 1)


def test_a_full_broker_refuses_pieces_and_still_takes_the_answer(shard: Shard, token: str) -> None:
    shard.client.config_set("maxmemory", "1mb")
    try:
        with pytest.raises(redis.exceptions.OutOfMemoryError):
            shard.emit(RID, token, 0, "abc")
        assert shard.finish(RID, token) == [b"OK", b"R"]
    finally:
        shard.client.config_set("maxmemory", "0")
