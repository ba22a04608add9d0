"""What shows only over many workers or hours: scripts alone, the clock injected, so that they pass in moments."""

from __future__ import annotations

from shared.queue.loader import NAMES, load
from tests.queue.harness import LEASE_MS, Shard

SILENT_MS = 4 * LEASE_MS


def load_all(shard: Shard) -> None:
    for name in NAMES:
        shard.client.script_load(load(name).source)


def idle_keys(shard: Shard) -> set[str]:
    ours = shard.client.scan_iter(f"{shard.keys.prefix}*", 1000)
    found = {key.decode().removeprefix(shard.keys.prefix) for key in ours}
    return {key for key in found if not key.startswith((":res:", ":body:"))}


def test_a_worker_that_is_killed_costs_each_of_its_batch_one_crash_and_no_more(
    shard: Shard,
) -> None:
    shard.api("a")
    rids = [f"q.0-{i}" for i in range(8)]
    for rid in rids:
        shard.submit(rid, api="a")
    tokens = {g[0].decode(): g[1].decode() for g in shard.claim("killed", 8)[5:]}
    shard.beat("killed", {rid: (token, True) for rid, token in tokens.items()})
    shard.advance(LEASE_MS + 1000)
    assert shard.reap()[0] == 8
    records = [shard.record(rid) for rid in rids]
    assert {(r.state, r.crashes, r.attempts) for r in records if r} == {("Q", 1, 0)}
    again: dict[str, str] = {}
    while len(again) < 8:
        for grant in shard.claim("next", 8, slots=32)[5:]:
            rid, token = grant[0].decode(), grant[1].decode()
            assert shard.finish(rid, token, "next")[0] == b"OK"
            assert shard.finish(rid, tokens[rid], "killed")[0] == b"LOST"
            again[rid] = token
    outcomes = [shard.outcome(rid) for rid in rids]
    assert [(o.state, o.crashes, o.grants) for o in outcomes if o] == [("F", 1, 2)] * 8
    assert sorted(shard.notices("a")) == rids, "each was told once"


def test_workers_that_start_ten_thousand_times_leave_nothing_behind(shard: Shard) -> None:
    """Some die before their first beat, some with a grant, some leave. What they held is never dropped."""
    for rid in ("q.0-a", "q.0-b"):
        shard.submit(rid, timeout_ms=3_600_000, queue_timeout_ms=3_600_000)
    most = 0
    load_all(shard)
    pipe = shard.client.pipeline(transaction=False)
    for i in range(10_000):
        wid = f"w.{i}"
        shard.scripts.at_ms += 50
        calls = [shard.scripts.claim(wid, 1, i % 2, 1 << 20, LEASE_MS, True, 8)]
        if i % 3:
            calls.append(shard.scripts.beat(wid, LEASE_MS, 1, b"info", {}))
        if i % 20 == 0:
            calls += [shard.scripts.tick(LEASE_MS), shard.scripts.reap(128, 1_000_000, 5)]
        for call in calls:
            pipe.execute_command(*call.command)
        if i % 600 == 599:
            pipe.execute()
            shard.run(shard.scripts.prune(SILENT_MS))
            most = max(most, shard.client.hlen(shard.keys.fixed("wk")))
            assert {shard.state(rid) for rid in ("q.0-a", "q.0-b")} <= {"Q", "R"}
    pipe.execute()
    # Right after it was run: those of the last four leases, one each 50 ms with three fields, and as many again that
    # claimed and died before they beat, whose silence counts from the first look.
    assert most <= 2 * 3 * SILENT_MS / 50
    for _ in range(2):
        shard.run(shard.scripts.prune(SILENT_MS))
        shard.advance(SILENT_MS + 1000)
        shard.run(shard.scripts.reap(128, 1_000_000, 5))
    shard.run(shard.scripts.prune(SILENT_MS))
    assert shard.client.hlen(shard.keys.fixed("wk")) == 0
    granted = {g[0].decode() for g in shard.claim("last", 2)[5:]}
    granted |= {g[0].decode() for g in shard.claim("last", 2)[5:]}
    assert granted == {"q.0-a", "q.0-b"}


def test_what_was_queued_before_there_was_any_worker_is_granted_to_the_first(shard: Shard) -> None:
    rids = [f"q.0-{i}" for i in range(5)]
    for rid in rids:
        shard.submit(rid)
    shard.advance(60_000)
    assert [grant[0].decode() for grant in shard.claim("first ever", 5)[5:]] == rids


def test_a_run_of_35_minutes_is_nobody_elses_while_its_worker_beats(shard: Shard) -> None:
    shard.submit("q.0-long", timeout_ms=3_600_000)
    rid, token = shard.grant("w")
    for _ in range(35 * 60 // 5):
        shard.advance(5000)
        assert shard.beat("w", {rid: (token, True)})[3] == []
        assert shard.reap() == [0, 0]
        assert shard.claim("other", 1)[5:] == []
    assert shard.finish(rid, token, "w")[0] == b"OK"
    outcome = shard.outcome(rid)
    assert outcome is not None
    assert (outcome.grants, outcome.crashes) == (1, 0)


def test_a_broker_that_stands_still_for_20_s_three_times_counts_no_crash(shard: Shard) -> None:
    rids = [f"q.0-{i}" for i in range(64)]
    for rid in rids:
        shard.submit(rid)
    held = {g[0].decode(): (g[1].decode(), True) for g in shard.claim("w", 64, slots=64)[5:]}
    for _ in range(3):
        assert shard.beat("w", held)[3] == []
        shard.scripts.at_ms += 20_000  # its clock goes on while it does nothing
        # Whoever comes first when it goes on again.
        assert shard.reap() == [0, 0]
        shard.run(shard.scripts.tick(LEASE_MS))
        assert shard.reap() == [0, 0]
        assert shard.beat("w", held)[3] == []
        shard.advance(1000)
    for rid, (token, _) in held.items():
        assert shard.finish(rid, token, "w")[0] == b"OK"
    outcomes = [shard.outcome(rid) for rid in rids]
    assert all(outcome and outcome.crashes == 0 for outcome in outcomes)


def test_a_clock_that_is_set_back_an_hour_lets_nobody_overtake_and_no_lease_last(
    shard: Shard,
) -> None:
    shard.submit("q.0-first")
    shard.submit("q.0-lost")
    assert shard.grant("killed")[0] == "q.0-first"
    shard.scripts.at_ms -= 3_600_000
    shard.run(shard.scripts.tick(LEASE_MS))
    shard.submit("q.0-late")
    # A grace of two leases, for beats to catch up, and then the lease itself.
    shard.advance(3 * LEASE_MS + 2000)
    assert shard.reap()[0] == 1
    order = [g[0].decode() for g in shard.claim("w", 3)[5:]]
    assert order == ["q.0-first", "q.0-lost", "q.0-late"]


def test_an_idle_queue_holds_the_same_keys_after_hundreds_of_requests_as_after_ten(
    shard: Shard,
) -> None:
    shard.api("a")
    kept: list[set[str]] = []
    for n in (10, 500):
        for i in range(n):
            shard.submit(f"q.0-{n}-{i}", tenant=f"t{i % 7}", api="a", payload=b"x" * 100)
            rid, token = shard.grant("w")
            shard.finish(rid, token, "w", body=None)
        shard.run(shard.scripts.prune(SILENT_MS))
        for name in ("in", "ready:1", "live", "lease", "when"):
            assert shard.client.exists(shard.keys.fixed(name)) == 0 or name == "in"
        kept.append(idle_keys(shard))
    assert kept[0] == kept[1]


def test_an_answer_whose_time_is_over_is_known_to_have_been_there_and_is_not_run_again(
    shard: Shard,
) -> None:
    shard.submit("q.0-a", digest="d")
    rid, token = shard.grant("w")
    shard.finish(rid, token, "w")
    body, outcome = shard.keys.body(rid), shard.keys.outcome(rid)
    assert 0 < shard.client.pttl(body) < shard.client.pttl(outcome)
    shard.client.pexpire(body, 1)
    while shard.client.exists(body):
        pass
    assert shard.state(rid) == "F"
    assert shard.submit("q.0-a", digest="d")[0] == b"DONE"
    assert shard.claim("w")[5:] == []
