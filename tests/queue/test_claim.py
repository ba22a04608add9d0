"""claim and beat against the real server."""

from __future__ import annotations

import pytest

from tests.queue.harness import LEASE_MS, Shard


def test_a_claim_sent_twice_gives_the_same_grants(shard: Shard) -> None:
    for i in range(4):
        shard.submit(f"q.0-{i}")
    first = shard.claim(n=2, seq=1)
    assert shard.claim(n=2, seq=1)[5:] == first[5:]
    assert len(shard.claim(n=4, seq=2)[5:]) == 2


def test_a_late_copy_of_an_older_claim_gets_nothing(shard: Shard) -> None:
    shard.submit("q.0-a")
    shard.claim(seq=5, n=0)
    assert shard.claim(seq=4)[0] == b"STALE"
    assert shard.state("q.0-a") == "Q"


def test_grants_follow_submit_order_in_a_lane(shard: Shard) -> None:
    ids = [f"q.0-{i:03d}" for i in range(50)]
    for rid in reversed(ids):
        shard.submit(rid)
    got = [grant[0].decode() for grant in shard.claim(n=50)[5:]]
    assert got == list(reversed(ids))


def test_the_more_urgent_lane_goes_first_until_age_evens_it_out(shard: Shard) -> None:
    shard.submit("q.0-batch", lane=2)
    shard.advance(29_000)
    shard.submit("q.0-now", lane=0)
    assert shard.grant()[0] == "q.0-now"
    shard.advance(2000)
    shard.submit("q.0-later", lane=0)
    assert shard.grant()[0] == "q.0-batch"


def test_one_tenants_flood_does_not_delay_anothers_first(shard: Shard) -> None:
    for i in range(100):
        shard.submit(f"q.0-flood{i:03d}", tenant="flood")
    shard.claim(n=3)
    shard.submit("q.0-other", tenant="other")
    got = [grant[0].decode() for grant in shard.claim(n=2)[5:]]
    assert "q.0-other" in got


def test_bytes_bound_a_claim_but_never_starve_it(shard: Shard) -> None:
    for i in range(3):
        shard.submit(f"q.0-{i}", payload=b"x" * 1000)
    assert len(shard.claim(n=3, max_bytes=1500)[5:]) == 1
    assert len(shard.claim(n=3, max_bytes=10)[5:]) == 1


def test_one_payload_of_10_mib_is_granted_alone(shard: Shard) -> None:
    shard.submit("q.0-big", payload=b"x" * (10 << 20))
    shard.submit("q.0-small")
    grants = shard.claim(n=8, max_bytes=1 << 20)[5:]
    assert [(grant[0], len(grant[7])) for grant in grants] == [(b"q.0-big", 10 << 20)]
    assert shard.grant()[0] == "q.0-small"


def test_what_is_over_is_not_granted(shard: Shard) -> None:
    shard.submit("q.0-old", queue_timeout_ms=1000)
    shard.submit("q.0-new")
    shard.advance(1500)
    assert shard.grant()[0] == "q.0-new"
    assert shard.claim()[5:] == []


def test_a_claim_goes_past_what_is_over_but_does_no_more_than_so_much(shard: Shard) -> None:
    for i in range(288):
        shard.submit(f"q.0-{i:03d}", queue_timeout_ms=1000)
    shard.submit("q.0-new")
    shard.advance(1500)
    assert shard.claim(n=4)[5:] == []  # 256 looked at
    for rid in shard.run(shard.scripts.sweep(256))[0]:
        shard.end(rid.decode(), "expire")
    assert [grant[0] for grant in shard.claim(n=4)[5:]] == [b"q.0-new"]  # past the last 32


def test_ids_without_a_record_cost_a_claim_256_at_most_and_are_gone_then(shard: Shard) -> None:
    lane, stale = shard.keys.fixed("ready:1"), 50_000
    shard.submit("q.0-new")
    shard.client.zadd(lane, {f"stale{i}": -1 for i in range(stale)})
    claims = 1
    while not shard.claim(n=64)[5:]:
        stale -= 256
        assert shard.client.zcard(lane) == stale + 1
        claims += 1
    assert claims == 50_000 // 256 + 1
    assert shard.client.zcard(lane) == 0


def test_an_id_in_a_ready_set_that_runs_is_not_granted_again(shard: Shard) -> None:
    shard.submit("q.0-a")
    rid, token = shard.grant()
    for name in ("ready:R", "ready:0", "ready:S"):
        shard.client.zadd(shard.keys.fixed(name), {rid: 0})
    assert shard.claim("w2", n=4)[2:] == [0, 0, 0]
    assert shard.finish(rid, token) == [b"OK", b"R"]


def test_a_paused_queue_grants_nothing(shard: Shard) -> None:
    shard.submit("q.0-a")
    shard.client.hset(shard.keys.fixed("flags"), "paused", "1")
    assert shard.claim()[1] == 1
    assert shard.state("q.0-a") == "Q"


def test_a_request_whose_payload_was_trimmed_is_ended_not_hung(shard: Shard) -> None:
    shard.submit("q.0-a")
    shard.client.xtrim(shard.keys.fixed("in"), maxlen=0)
    assert shard.claim()[5:] == []
    assert shard.run(shard.scripts.sweep(10))[0] == [b"q.0-a"]
    assert shard.end("q.0-a", "dead")[0] == b"OK"
    outcome = shard.outcome("q.0-a")
    assert outcome is not None
    assert (outcome.state, outcome.code) == ("E", "payload_lost")


def test_an_empty_claim_never_rings_and_a_full_one_does(shard: Shard) -> None:
    bell = shard.keys.fixed("bell")
    for i in range(3):
        shard.submit(f"q.0-{i}")
    shard.client.delete(bell)
    shard.claim(n=2)
    assert shard.client.zcard(bell) == 1
    shard.client.delete(bell)
    shard.claim(n=2)
    shard.claim(n=2)
    assert shard.client.zcard(bell) == 0


def test_a_claim_of_none_only_looks(shard: Shard) -> None:
    shard.submit("q.0-a")
    shard.client.delete(shard.keys.fixed("bell"))
    assert shard.claim(n=0) == [b"OK", 0, 0, 1, 0]
    assert shard.client.exists(shard.keys.fixed("bell")) == 0
    assert shard.grant()[0] == "q.0-a"


def test_a_lane_that_is_flooded_does_not_keep_another_waiting_for_ever(shard: Shard) -> None:
    shard.submit("q.0-batch", lane=2)
    waited_s = n_ahead = 0
    while True:
        for i in range(3):
            shard.submit(f"q.0-{waited_s:03d}-{i}", lane=0)
        grants = [grant[0] for grant in shard.claim(n=2)[5:]]
        if b"q.0-batch" in grants:
            break
        n_ahead += len(grants)
        waited_s += 1
        shard.advance(1000)
    # What came within 30 s, the boosts' difference, and nothing that came later.
    assert n_ahead == pytest.approx(3 * 30, abs=4)
    for grant in shard.claim(n=200)[5:]:
        assert grant[0] > b"q.0-029"


def test_a_request_whose_worker_was_lost_goes_before_all_that_waits(shard: Shard) -> None:
    for rid in ("q.0-started", "q.0-unstarted"):
        shard.submit(rid, lane=0)
    for grant in shard.claim("w1", n=2)[5:]:
        if grant[0] == b"q.0-started":
            shard.start("q.0-started", grant[1].decode())
    for i in range(20):
        shard.submit(f"q.0-{i}", lane=0)
    shard.advance(LEASE_MS + 1000)
    shard.reap()
    assert shard.claim("w2", n=1, idle=False)[5][0] == b"q.0-unstarted"
    assert shard.claim("w3", n=1)[5][0] == b"q.0-started"


def test_suspects_come_to_an_idle_worker_alone_or_in_quarters(shard: Shard) -> None:
    for i in range(4):
        shard.submit(f"q.0-{i}")
    for grant in shard.claim(n=4)[5:]:
        rid, token = grant[0].decode(), grant[1].decode()
        shard.nack("suspect", rid, token)
    shard.submit("q.0-fresh")
    busy = shard.claim(n=8, idle=False)
    assert [grant[0] for grant in busy[5:]] == [b"q.0-fresh"]
    assert busy[2] == 4
    idle = shard.claim(n=8, idle=True, slots=8)
    assert idle[4] == 1
    assert len(idle[5:]) == 2
    for grant in idle[5:]:
        shard.nack("suspect", grant[0].decode(), grant[1].decode())
    again = shard.claim(n=8, idle=True, slots=8)
    assert [grant[4] for grant in again[5:]] == [1, 1]
    for grant in again[5:]:
        shard.finish(grant[0].decode(), grant[1].decode())
    alone = shard.claim(n=8, idle=True, slots=8)
    assert [grant[4] for grant in alone[5:]] == [2]


def test_a_beat_renews_the_lease_and_marks_the_start(shard: Shard) -> None:
    shard.submit("q.0-a")
    rid, token = shard.grant()
    shard.advance(10_000)
    shard.start(rid, token)
    record = shard.record(rid)
    assert record is not None
    assert record.started_ms == shard.now_ms
    assert shard.client.zscore(shard.keys.fixed("lease"), rid) == shard.now_ms + LEASE_MS


def test_a_beat_tells_what_was_lost(shard: Shard) -> None:
    shard.submit("q.0-a")
    rid, token = shard.grant()
    shard.end(rid, "cancel")
    reply = shard.beat("w1", {rid: (token, True), "q.0-none": ("1-1", True)})
    assert reply[3] == [b"q.0-a", b"q.0-none"]


def test_a_beat_tells_of_a_grant_that_the_worker_does_not_hold(shard: Shard) -> None:
    shard.submit("q.0-a")
    rid, token = shard.grant()
    assert shard.beat("w1", {})[4] == []
    shard.advance(3000)
    assert shard.beat("w1", {}, seq_seen=0)[4] == []
    assert shard.beat("w1", {})[4] == [rid.encode(), token.encode()]
    assert shard.beat("w1", {rid: (token, False)})[4] == []


def test_a_claim_of_a_paused_queue_that_is_sent_twice_says_so_twice(shard: Shard) -> None:
    shard.client.hset(shard.keys.fixed("flags"), "paused", "1")
    assert shard.claim(seq=1)[1] == 1
    assert shard.claim(seq=1)[1] == 1
