"""nack, reap and the queue clock: ways back, and when a lost lease counts."""

from __future__ import annotations

from tests.queue.harness import LEASE_MS, Shard


def test_release_counts_nothing_and_goes_to_the_front(shard: Shard) -> None:
    shard.submit("q.0-a")
    shard.submit("q.0-b", lane=0)
    shard.grant()
    rid, token = shard.grant()
    assert rid == "q.0-a"
    assert shard.nack("release", rid, token) == [b"OK"]
    shard.submit("q.0-c", lane=0)
    assert shard.grant()[0] == rid
    record = shard.record(rid)
    assert record is not None
    assert (record.attempts, record.crashes, record.grants) == (0, 0, 2)


def test_a_nack_sent_twice_acts_once(shard: Shard) -> None:
    shard.submit("q.0-a")
    rid, token = shard.grant()
    assert shard.nack("suspect", rid, token) == [b"OK"]
    assert shard.nack("suspect", rid, token) == [b"LOST"]
    record = shard.record(rid)
    assert record is not None
    assert record.crashes == 1


def test_retry_waits_with_backoff_and_dies_after_max_attempts(shard: Shard) -> None:
    shard.submit("q.0-a")
    for attempt, delay in enumerate((500, 1000), start=1):
        rid, token = shard.grant()
        assert shard.nack("retry", rid, token) == [b"OK"]
        assert shard.state(rid) == "L"
        shard.advance(delay - 100)
        assert shard.run(shard.scripts.promote(10))[0] == 0
        shard.advance(100)
        assert shard.run(shard.scripts.promote(10))[0] == 1
        record = shard.record(rid)
        assert record is not None
        assert record.attempts == attempt
    rid, token = shard.grant()
    assert shard.nack("retry", rid, token) == [b"DEAD"]
    assert shard.state(rid) == "K"
    assert shard.end(rid, "dead")[0] == b"OK"
    outcome = shard.outcome(rid)
    assert outcome is not None
    assert (outcome.state, outcome.code) == ("E", "attempts_exhausted")
    assert ("failed", "why") in [(event.kind, event.detail) for event in outcome.events]


def test_a_retry_waits_a_minute_at_most(shard: Shard) -> None:
    shard.submit("q.0-a")
    rid, token = shard.grant()
    limits = {"max_attempts": 20, "max_crashes": 2, "delay_ms": 45_000}
    for delay_ms in (45_000, 60_000, 60_000):
        shard.run(shard.scripts.nack("w1", "retry", "why", [(rid, token)], **limits))
        assert shard.client.zscore(shard.keys.fixed("later"), rid) == shard.now_ms + delay_ms
        shard.advance(delay_ms)
        shard.run(shard.scripts.promote(1))
        rid, token = shard.grant()


def test_a_retry_is_claimed_though_its_time_in_the_queue_is_over(shard: Shard) -> None:
    shard.submit("q.0-a", queue_timeout_ms=5_000)
    rid, token = shard.grant()
    shard.advance(6_000)
    assert shard.nack("retry", rid, token) == [b"OK"]
    shard.advance(1_000)
    shard.run(shard.scripts.promote(10))
    assert shard.grant()[0] == rid


def test_a_retry_does_not_set_its_lanes_virtual_time_back(shard: Shard) -> None:
    for i in range(4):
        shard.submit(f"q.0-{i}", tenant="old", tokens=100)
    rid, token = shard.grant()
    for _ in range(3):
        shard.grant()
    shard.nack("retry", rid, token)
    shard.advance(1_000)
    shard.run(shard.scripts.promote(10))
    assert shard.grant()[0] == rid
    shard.submit("q.0-new", tenant="new", tokens=100)
    record = shard.record("q.0-new")
    assert record is not None
    assert record.tag == 300


def test_a_worker_that_dies_before_starting_costs_the_request_nothing(shard: Shard) -> None:
    shard.submit("q.0-a")
    shard.grant()
    shard.advance(LEASE_MS + 1000)
    assert shard.reap() == [1, 0]
    record = shard.record("q.0-a")
    assert record is not None
    assert record.crashes == 0


def test_a_request_that_kills_its_workers_is_dead_after_max_crashes(shard: Shard) -> None:
    shard.submit("q.0-poison")
    for crashes in (1, 2):
        rid, token = shard.grant(f"w{crashes}")
        shard.start(rid, token, f"w{crashes}")
        shard.advance(LEASE_MS + 1000)
        shard.reap()
        record = shard.record(rid)
        assert record is not None
        assert record.crashes == crashes
    rid, token = shard.grant("w3")
    shard.start(rid, token, "w3")
    shard.advance(LEASE_MS + 1000)
    shard.reap()
    assert shard.state(rid) == "K"
    shard.end(rid, "dead")
    outcome = shard.outcome(rid)
    assert outcome is not None
    assert ("crash", "lease lost by w3") in [(event.kind, event.detail) for event in outcome.events]


def test_a_request_granted_again_and_again_without_a_start_becomes_a_suspect(shard: Shard) -> None:
    shard.submit("q.0-a")
    for i in range(5):
        shard.grant(f"w{i}")
        shard.advance(LEASE_MS + 1000)
        shard.reap()
    record = shard.record("q.0-a")
    assert record is not None
    assert record.crashes == 1


def test_dead_leases_behind_many_live_ones_are_found_in_one_pass(shard: Shard) -> None:
    for i in range(400):
        shard.submit(f"q.0-{i:03d}")
    grants = {g[0].decode(): (g[1].decode(), True) for g in shard.claim(n=400)[5:]}
    dead = sorted(grants)[-10:]
    for _ in range(LEASE_MS // 1000 + 1):
        shard.advance(1000)
        shard.beat("w1", {rid: held for rid, held in grants.items() if rid not in dead})
    assert shard.reap(100) == [10, 0]


def test_a_requeued_request_is_not_ended_by_its_queue_time_out(shard: Shard) -> None:
    shard.submit("q.0-a", queue_timeout_ms=20_000, timeout_ms=100_000)
    rid, token = shard.grant()
    shard.start(rid, token)
    shard.advance(LEASE_MS + 1000)
    shard.reap()
    shard.advance(10_000)
    assert shard.run(shard.scripts.sweep(10))[0] == []
    assert shard.grant()[0] == rid


def jump(shard: Shard, ms: int) -> None:
    shard.scripts.at_ms += ms


def test_a_step_of_the_brokers_clock_ends_no_lease(shard: Shard) -> None:
    shard.submit("q.0-a")
    rid, token = shard.grant()
    shard.start(rid, token)
    for step in (3_600_000, -7_200_000, 20_000):
        jump(shard, step)
        assert shard.reap() == [0, 0]
        shard.run(shard.scripts.tick(LEASE_MS))
        assert shard.reap() == [0, 0]
        assert shard.run(shard.scripts.sweep(10))[0] == []
        shard.start(rid, token)
    record = shard.record(rid)
    assert record is not None
    assert (record.state, record.crashes) == ("R", 0)
    assert shard.finish(rid, token) == [b"OK", b"R"]


def test_the_queue_clock_never_goes_back(shard: Shard) -> None:
    seen = []
    for step in (1000, 500_000, -900_000, 1000, -1500, 0, 7000):
        jump(shard, step)
        seen.append(int(shard.run(shard.scripts.tick(LEASE_MS))[0]))
    assert seen == sorted(seen)
    assert seen[-1] - seen[0] < 15_000


def test_a_lease_after_a_backward_step_is_as_long_as_ever(shard: Shard) -> None:
    jump(shard, -3_600_000)
    shard.run(shard.scripts.tick(LEASE_MS))
    shard.submit("q.0-a")
    shard.grant()
    shard.advance(2 * LEASE_MS + LEASE_MS + 2000)
    assert shard.reap() == [1, 0]


def test_a_suspect_that_is_given_back_is_still_one(shard: Shard) -> None:
    """Else it would run beside others again, and take them along."""
    suspects = shard.keys.fixed("ready:S")
    shard.submit("q.0-a")
    shard.nack("suspect", *shard.grant())
    shard.nack("release", *shard.grant())
    assert shard.client.zrange(suspects, 0, -1) == [b"q.0-a"]
    shard.grant()
    shard.advance(16_000)
    shard.reap()
    assert shard.client.zrange(suspects, 0, -1) == [b"q.0-a"]
    shard.nack("retry", *shard.grant())
    shard.advance(1000)
    shard.run(shard.scripts.promote(10))
    assert shard.client.zrange(suspects, 0, -1) == [b"q.0-a"]
    assert shard.claim(n=2)[4] == 1
