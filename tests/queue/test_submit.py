"""submit, reserve, submit_many and end_missing against the real server."""

from __future__ import annotations

from tests.queue.harness import NO_CAPS, TTL_MS, Shard


def test_a_submit_makes_one_live_request(shard: Shard) -> None:
    assert shard.submit("q.0-a") == [b"OK", 0, str(shard.now_ms).encode()]
    record = shard.record("q.0-a")
    assert record is not None
    assert (record.state, record.lane, record.submitted_ms) == ("Q", 1, shard.now_ms)
    assert record.deadline_ms == shard.now_ms + 600_000
    shard.check()


def test_the_same_submit_again_is_one_request(shard: Shard) -> None:
    shard.submit("q.0-a")
    assert shard.submit("q.0-a")[0] == b"DUP"
    assert shard.client.xlen(shard.keys.fixed("in")) == 1


def test_another_body_under_a_known_id_is_refused_live_and_ended(shard: Shard) -> None:
    shard.submit("q.0-a")
    assert shard.submit("q.0-a", digest="other") == [b"MISMATCH"]
    rid, token = shard.grant()
    shard.finish(rid, token)
    assert shard.submit("q.0-a", digest="other") == [b"MISMATCH"]
    assert shard.submit("q.0-a") == [b"DONE"]
    assert shard.record("q.0-a") is None


def test_position_counts_what_is_ahead(shard: Shard) -> None:
    assert [shard.submit(f"q.0-{i}")[1] for i in range(3)] == [0, 1, 2]
    assert shard.submit("q.0-first", lane=0)[1] == 0
    assert shard.submit("q.0-last", lane=2)[1] == 4


def test_caps_are_kept_for_requests_tokens_and_tenants(shard: Shard) -> None:
    shard.submit("q.0-a", tokens=10)
    assert shard.submit("q.0-b", caps=(1, 0, 0, 0)) == [b"FULL", b"requests", 1]
    assert shard.submit("q.0-b", tokens=10, caps=(0, 19, 0, 0))[1] == b"tokens"
    assert shard.submit("q.0-b", caps=(0, 0, 1, 0))[1] == b"tenant_requests"
    assert shard.submit("q.0-b", tokens=10, caps=(0, 0, 0, 19))[1] == b"tenant_tokens"
    assert shard.submit("q.0-b", tenant="other", caps=(0, 0, 1, 0))[0] == b"OK"


def test_a_delayed_request_is_not_claimable_before_its_time(shard: Shard) -> None:
    shard.submit("q.0-a", not_before_ms=2000)
    assert shard.state("q.0-a") == "L"
    assert shard.claim()[5:] == []
    shard.advance(2000)
    assert shard.run(shard.scripts.promote(10)) == [1, 0]
    assert shard.grant()[0] == "q.0-a"


def reserve(
    shard: Shard, parent: str, n: int, caps: tuple[int, int, int, int] = NO_CAPS
) -> list[bytes]:
    reply: list[bytes] = shard.run(
        shard.scripts.reserve(parent, n, n * 10, "anonymous", "d", "api", "{}", caps)
    )
    return reply


def put(shard: Shard, parent: str, start: int, count: int) -> list[bytes]:
    meta = [1, "anonymous", 0, 600_000, 600_000, "api", "{}", "", [], "", "", 0, 1, 0]
    reply: list[bytes] = shard.run(
        shard.scripts.submit_many(parent, start, meta, [(b"p", 10, "{}")] * count)
    )
    return reply


def test_a_list_is_admitted_all_or_nothing(shard: Shard) -> None:
    shard.submit("q.0-a")
    assert reserve(shard, "q.0-p", 4, (4, 0, 0, 0)) == [b"FULL", b"requests", 1]
    assert reserve(shard, "q.0-p", 3, (4, 0, 0, 0))[0] == b"OK"
    assert shard.submit("q.0-b", caps=(4, 0, 0, 0))[0] == b"FULL"
    shard.check()
    put(shard, "q.0-p", 0, 3)


def test_a_lists_chunks_may_be_sent_twice(shard: Shard) -> None:
    reserve(shard, "q.0-p", 5)
    assert put(shard, "q.0-p", 0, 2) == [b"OK", 2]
    assert put(shard, "q.0-p", 0, 2) == [b"DUP", 2]
    assert put(shard, "q.0-p", 3, 2) == [b"GAP", 2]
    assert put(shard, "q.0-p", 2, 3) == [b"OK", 5]
    assert put(shard, "q.0-p", 2, 3) == [b"DUP", 5]
    assert shard.client.hlen(shard.keys.fixed("live")) == 5
    assert shard.client.zcard(shard.keys.fixed("resv")) == 0


def test_a_list_ends_with_its_last_child_and_tells_once(shard: Shard) -> None:
    shard.api("api")
    reserve(shard, "q.0-p", 3)
    put(shard, "q.0-p", 0, 3)
    for i in range(3):
        assert shard.outcome("q.0-p") is None
        rid, token = shard.grant()
        assert rid == f"q.0-p.{i}"
        assert shard.finish(rid, token, parent="q.0-p") == [b"OK", b"R"]
    outcome = shard.outcome("q.0-p")
    assert outcome is not None
    assert (outcome.state, outcome.n_children) == ("F", 3)
    assert shard.notices("api") == ["q.0-p"]


def test_an_unfinished_list_ends_as_incomplete_after_its_reservation(shard: Shard) -> None:
    shard.api("api")
    reserve(shard, "q.0-p", 4)
    put(shard, "q.0-p", 0, 1)
    call = shard.scripts.end_missing("q.0-p", "E", "submit_incomplete", 1, 3, TTL_MS, ["api"])
    assert shard.run(call) == [b"NOTDUE"]
    shard.advance(31_000)
    assert shard.run(shard.scripts.sweep(10))[1] == [b"q.0-p"]
    assert shard.run(call) == [b"OK", 4, 4]
    assert put(shard, "q.0-p", 1, 3)[0] in (b"DUP", b"GONE")
    shard.check()
    assert shard.outcome("q.0-p") is None
    rid, token = shard.grant()
    shard.finish(rid, token, parent="q.0-p")
    assert shard.outcome("q.0-p") is not None
    missing = shard.outcome("q.0-p.3")
    assert missing is not None
    assert (missing.state, missing.code) == ("E", "submit_incomplete")
    assert shard.notices("api") == ["q.0-p"]


def test_a_chunk_of_a_cancelled_list_is_gone_though_its_items_count_as_submitted(
    shard: Shard,
) -> None:
    reserve(shard, "q.0-p", 3)
    put(shard, "q.0-p", 0, 2)
    shard.run(shard.scripts.end_missing("q.0-p", "C", "cancelled", 2, 1, TTL_MS, []))
    assert put(shard, "q.0-p", 2, 1) == [b"GONE"]
    for i in range(2):
        shard.end(f"q.0-p.{i}", "cancel")


def test_cancelling_a_list_ends_it_as_cancelled(shard: Shard) -> None:
    shard.api("api")
    reserve(shard, "q.0-p", 3)
    put(shard, "q.0-p", 0, 2)
    shard.run(shard.scripts.end_missing("q.0-p", "C", "cancelled", 2, 1, TTL_MS, ["api"]))
    for i in range(2):
        assert shard.end(f"q.0-p.{i}", "cancel")[0] == b"OK"
    outcome = shard.outcome("q.0-p")
    assert outcome is not None
    assert outcome.state == "C"
    assert shard.notices("api") == ["q.0-p"]
    assert shard.claim(n=4)[5:] == []
