"""tick, peek, stats, prune, set_prompt and the loader of scripts."""

from __future__ import annotations

import pytest

from shared.queue import stats
from shared.queue.fitness import LAYOUT
from shared.queue.loader import NAMES, load
from tests.queue.harness import LEASE_MS, Shard


@pytest.mark.parametrize("name", NAMES)
def test_every_script_has_a_header_and_loads(shard: Shard, name: str) -> None:
    script = load(name)
    for part in ("-- KEYS:", "-- ARGV:", "-- Replies:", "-- Moves:", "-- FLAGS:", "-- USES:"):
        assert part in script.source
    sha = shard.client.script_load(script.source)
    assert sha in (script.sha, script.sha.encode())


def test_a_lost_stream_is_made_anew_after_the_last_read_entry(shard: Shard) -> None:
    shard.api("api")
    shard.client.delete(shard.keys.out("api"))
    last = f"{shard.now_ms + 99_999}-7"
    assert shard.run(shard.scripts.tick(LEASE_MS, "api", last))[3] == 1
    entry = shard.client.xrange(shard.keys.out("api"))[0][0].decode()
    assert tuple(map(int, entry.split("-"))) > tuple(map(int, last.split("-")))
    assert shard.run(shard.scripts.tick(LEASE_MS, "api", entry))[3] == 0
    assert 0 < shard.client.pttl(shard.keys.out("api")) <= 60_000


def test_peek_knows_each_stage(shard: Shard) -> None:
    def kind() -> bytes:
        reply: bytes = shard.run(shard.scripts.peek("q.0-a"))[1]
        return reply

    assert kind() == b"none"
    shard.submit("q.0-a")
    assert shard.run(shard.scripts.peek("q.0-a"))[3] == 0
    rid, token = shard.grant()
    assert kind() == b"live"
    assert shard.run(shard.scripts.peek("q.0-a"))[3] == -1
    shard.finish(rid, token)
    assert kind() == b"done"


def test_tick_marks_a_queue_with_the_layout_that_is_looked_for(shard: Shard) -> None:
    assert int(shard.client.hget(shard.keys.fixed("flags"), "layout")) == LAYOUT


def test_a_pause_counts_for_no_deadline_and_events_still_tell_the_servers_time(
    shard: Shard,
) -> None:
    shard.submit("q.0-before", timeout_ms=60_000)
    shard.scripts.at_ms += 8 * 3_600_000  # everything was down
    shard.run(shard.scripts.tick(LEASE_MS))
    at = shard.submit("q.0-after")[2]
    assert int(at) == shard.now_ms
    before, after = shard.record("q.0-before"), shard.record("q.0-after")
    assert before is not None
    assert after is not None
    assert after.submitted_ms - before.submitted_ms < 5_000
    assert after.events[0].at_ms - before.events[0].at_ms >= 8 * 3_600_000
    assert int(shard.run(shard.scripts.peek("q.0-after"))[4]) == shard.now_ms
    assert shard.run(shard.scripts.sweep(10))[0] == []


def test_stats_tell_depth_age_and_workers(shard: Shard) -> None:
    shard.submit("q.0-a", lane=0)
    shard.advance(2000)
    shard.submit("q.0-b", lane=2)
    shard.beat("w1", {})
    shard.grant("w1")
    found = stats.parse(shard.run(shard.scripts.stats()), LEASE_MS / 1000)
    assert found.depth == {"interactive": 0, "standard": 0, "batch": 1}
    assert (found.running, found.live, found.queued, found.tokens) == (1, 2, 1, 20)
    assert [worker.is_live for worker in found.workers] == [True]
    shard.advance(LEASE_MS + 1000)
    found = stats.parse(shard.run(shard.scripts.stats()), LEASE_MS / 1000)
    assert [worker.is_live for worker in found.workers] == [False]
    assert found.oldest_age_s == pytest.approx((LEASE_MS + 1000) / 1000)


def test_silent_workers_are_forgotten_and_live_ones_kept(shard: Shard) -> None:
    shard.beat("old", {})
    shard.advance(10_000)
    shard.beat("new", {})
    assert shard.run(shard.scripts.prune(5000)) == [1]
    names = shard.client.hkeys(shard.keys.fixed("wk"))
    assert sorted(names) == [b"b:new", b"i:new"]


def test_prompt_versions_count_up_and_old_ones_go(shard: Shard) -> None:
    for i in range(25):
        assert shard.run(shard.scripts.set_prompt(f"p{i}", "admin")) == [i + 1]
    sys = shard.keys.fixed("sys")
    assert shard.client.hget(sys, "t") == b"p24"
    assert shard.client.hget(sys, "t:6") == b"p5"
    assert shard.client.hget(sys, "t:5") is None
    assert shard.run(shard.scripts.tick(LEASE_MS))[2] == b"25"


def test_a_prompt_that_is_taken_away_is_a_version_too(shard: Shard) -> None:
    for text, version in (("", 1), ("p", 2), (None, 3)):
        assert shard.run(shard.scripts.set_prompt(text, "admin")) == [version]
    assert shard.run(shard.scripts.set_prompt(None, "admin")) == [3], "it is stored already"
    sys = shard.keys.fixed("sys")
    assert shard.client.hget(sys, "t") is None
    assert shard.client.hmget(sys, "t:1", "t:2", "t:3", "by:3") == [b"", b"p", None, b"admin"]
