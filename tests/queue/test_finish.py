"""finish, end and settle: exactly one outcome, fenced by the token."""

from __future__ import annotations

import pytest

from shared import codec
from shared.request import Report, Usage
from tests.queue.harness import TTL_MS, Shard


def test_a_result_is_stored_told_and_final_in_one_step(shard: Shard) -> None:
    shard.api("api")
    shard.submit("q.0-a", api="api")
    rid, token = shard.grant()
    assert shard.finish(rid, token) == [b"OK", b"R"]
    assert shard.state(rid) == "F"
    assert shard.client.get(shard.keys.body(rid)) is not None
    assert shard.notices("api") == [rid]


def test_a_finish_sent_twice_is_one_result_and_one_notice(shard: Shard) -> None:
    shard.api("api")
    shard.submit("q.0-a", api="api")
    rid, token = shard.grant()
    shard.finish(rid, token)
    assert shard.finish(rid, token) == [b"ALREADY"]
    assert shard.notices("api") == [rid]


def test_a_worker_that_lost_its_lease_cannot_overwrite(shard: Shard) -> None:
    shard.submit("q.0-a")
    rid, old = shard.grant("w1")
    shard.start(rid, old)
    shard.advance(16_000)
    assert shard.reap() == [1, 0]
    again, new = shard.grant("w2")
    assert again == rid
    assert shard.finish(rid, old, "w1") == [b"LOST"]
    assert shard.finish(rid, new, "w2") == [b"OK", b"R"]
    assert shard.finish(rid, old, "w1") == [b"LOST"]
    outcome = shard.outcome(rid)
    assert outcome is not None
    assert outcome.token == new


def test_a_late_finish_before_the_next_claim_still_counts(shard: Shard) -> None:
    shard.submit("q.0-a")
    rid, token = shard.grant()
    shard.start(rid, token)
    shard.advance(16_000)
    shard.reap()
    assert shard.state(rid) == "Q"
    assert shard.finish(rid, token) == [b"OK", b"Q"]
    assert shard.claim()[5:] == []


def test_another_workers_token_is_not_enough(shard: Shard) -> None:
    shard.submit("q.0-a")
    rid, token = shard.grant("w1")
    assert shard.finish(rid, token, "w2") == [b"LOST"]
    assert shard.finish(rid, "9-9", "w1") == [b"LOST"]
    assert shard.state(rid) == "R"


def test_a_finish_of_something_unknown_is_gone(shard: Shard) -> None:
    assert shard.finish("q.0-none", "1-1") == [b"GONE"]


def test_an_api_that_was_not_declared_is_reported_not_refused(shard: Shard) -> None:
    shard.api("api")
    shard.submit("q.0-a", api="api")
    rid, token = shard.grant()
    assert shard.finish(rid, token, apis=[]) == [b"OK", b"R", b"api"]
    assert shard.notices("api") == []
    assert shard.run(shard.scripts.notify(rid, "api", 1024)) == [b"OK"]
    assert shard.notices("api") == [rid]


def test_a_dead_apis_stream_is_not_made_anew(shard: Shard) -> None:
    shard.submit("q.0-a", api="dead")
    rid, token = shard.grant()
    assert shard.finish(rid, token, apis=["dead"]) == [b"OK", b"R"]
    assert shard.client.exists(shard.keys.out("dead")) == 0


def test_a_second_api_that_attached_is_told_too(shard: Shard) -> None:
    shard.api("one")
    shard.api("two")
    shard.submit("q.0-a", api="one")
    assert shard.run(shard.scripts.attach("q.0-a", "two")) == [b"OK"]
    assert shard.run(shard.scripts.attach("q.0-a", "two")) == [b"OK"]
    rid, token = shard.grant()
    shard.finish(rid, token)
    assert shard.notices("one") == shard.notices("two") == [rid]


def test_a_large_body_is_not_copied_into_the_notice(shard: Shard) -> None:
    shard.api("api")
    shard.submit("q.0-a", api="api")
    rid, token = shard.grant()
    shard.finish(rid, token, body=b"x" * 5000)
    _, fields = shard.client.xrange(shard.keys.out("api"))[-1]
    assert b"b" not in fields


@pytest.mark.parametrize("stage", ["queued", "running", "reaped"])
def test_cancel_ends_it_at_every_stage_and_only_once(shard: Shard, stage: str) -> None:
    shard.api("api")
    shard.submit("q.0-a", api="api")
    token = ""
    if stage != "queued":
        _, token = shard.grant()
    if stage == "reaped":
        shard.advance(16_000)
        shard.reap()
    assert shard.end("q.0-a", "cancel")[0] == b"OK"
    assert shard.end("q.0-a", "cancel") == [b"GONE"]
    assert shard.state("q.0-a") == "C"
    if token:
        assert shard.finish("q.0-a", token) == [b"LOST"]
    assert shard.notices("api") == ["q.0-a"]
    assert shard.claim()[5:] == []


def test_cancelling_a_running_one_rings_its_worker(shard: Shard) -> None:
    shard.submit("q.0-a")
    shard.grant("w1")
    shard.end("q.0-a", "cancel")
    assert shard.client.zrange(shard.keys.ctl("w1"), 0, -1) == [b"q.0-a"]


def test_end_asks_for_the_right_keys_when_the_owner_changed(shard: Shard) -> None:
    shard.submit("q.0-a")
    shard.grant("w1")
    assert shard.end("q.0-a", "cancel", wid="") == [b"KEYS"]
    assert shard.state("q.0-a") == "R"


def test_a_request_expires_in_the_queue_and_after_its_deadline_while_running(shard: Shard) -> None:
    shard.submit("q.0-a", queue_timeout_ms=2000)
    shard.submit("q.0-b", timeout_ms=5000, queue_timeout_ms=5000)
    assert shard.end("q.0-a", "expire") == [b"NOTDUE"]
    shard.claim(n=1)  # takes a
    shard.claim(n=1)  # takes b
    shard.nack("release", "q.0-a", shard.record("q.0-a").token)  # type: ignore[union-attr]
    shard.advance(7100)
    due = shard.run(shard.scripts.sweep(10))[0]
    assert due == [b"q.0-b"]
    assert shard.end("q.0-b", "expire")[0] == b"OK"
    outcome = shard.outcome("q.0-b")
    assert outcome is not None
    assert outcome.code == "deadline_exceeded"


def test_a_result_after_the_deadline_ended_it_is_told_that_it_came_too_late(shard: Shard) -> None:
    shard.submit("q.0-a", timeout_ms=5000, queue_timeout_ms=5000)
    rid, token = shard.grant()
    shard.advance(7100)
    assert shard.end(rid, "expire")[0] == b"OK"
    assert shard.finish(rid, token) == [b"LOST"]
    assert shard.run(shard.scripts.settle(rid, "w1", token, "{}", 3)) == [b"OK"]


def test_a_queue_time_out_ends_as_expired(shard: Shard) -> None:
    shard.submit("q.0-a", queue_timeout_ms=2000)
    shard.advance(2100)
    assert shard.run(shard.scripts.sweep(10))[0] == [b"q.0-a"]
    assert shard.run(shard.scripts.sweep(10))[0] == []
    assert shard.end("q.0-a", "expire")[0] == b"OK"
    outcome = shard.outcome("q.0-a")
    assert outcome is not None
    assert (outcome.state, outcome.code) == ("E", "expired")


def test_usage_of_a_cancelled_run_is_settled_once(shard: Shard) -> None:
    shard.submit("q.0-a")
    rid, token = shard.grant()
    report = codec.encode_report(Report(usage=Usage(3, 7)))
    settle = shard.scripts.settle(rid, "w1", token, report, 7)
    assert shard.run(settle) == [b"GONE"]
    shard.end(rid, "cancel")
    assert shard.run(shard.scripts.settle(rid, "w1", "0-0", report, 9)) == [b"LOST"]
    assert shard.run(shard.scripts.settle(rid, "w2", token, report, 9)) == [b"LOST"]
    assert shard.run(settle) == [b"OK"]
    assert shard.run(settle) == [b"ALREADY"]
    outcome = shard.outcome(rid)
    assert outcome is not None
    assert outcome.report.usage == Usage(3, 7)
    assert 0 < shard.client.pttl(shard.keys.outcome(rid)) <= TTL_MS
    assert shard.client.hget(shard.keys.fixed("stat"), "settled_tokens") == b"7"
