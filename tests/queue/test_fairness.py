"""Turns between tenants inside a lane, by tokens: start-time fair queueing as the scripts do it."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shared.queue.scripts import Call
from tests.queue.harness import Shard

# The shard is emptied by hand before each example.
few = settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
costs = st.lists(st.integers(1, 4000), min_size=10, max_size=25)


def empty(shard: Shard) -> None:
    shard.client.delete(*shard.client.keys(f"{shard.keys.prefix}*"))
    shard.seqs.clear()
    shard.advance(1)


def run_all(shard: Shard, calls: list[Call]) -> None:
    """In one go, so that thousands cost little."""
    shard.run(calls[0])
    pipe = shard.client.pipeline(transaction=False)
    for call in calls[1:]:
        pipe.execute_command(*call.command)
    pipe.execute()


def flood(shard: Shard, tenant: str, n: int, tokens: int = 10) -> None:
    meta = [1, tenant, tokens, 600_000, 600_000, "", "{}", "d", [], "", "", 0, 1, 0]
    rids = [f"q.0-{tenant}{i:05d}" for i in range(n)]
    run_all(shard, [shard.scripts.submit(rid, b"p", meta, (0, 0, 0, 0)) for rid in rids])


def served(shard: Shard, batch: int, n: int) -> Iterator[str]:
    """Tenants in the order of the grants, each of which ends at once."""
    while n > 0:
        grants = shard.claim(n=batch, idle=False)[5:]
        assert grants
        for rid, token, *_ in grants:
            record = shard.record(rid.decode())
            assert record is not None
            shard.finish(rid.decode(), token.decode())
            yield record.tenant
            n -= 1


@few
@given(costs, costs, st.sampled_from((1, 1, 2, 0.5)), st.integers(1, 6), st.booleans())
def test_between_two_busy_tenants_served_tokens_differ_by_one_request_at_most(
    shard: Shard, a: list[int], b: list[int], weight: float, batch: int, is_a_first: bool
) -> None:
    empty(shard)
    waiting = {"a": list(a), "b": list(b)}
    weights = {"a": 1.0, "b": weight}
    for tenant in ("a", "b") if is_a_first else ("b", "a"):
        for i, tokens in enumerate(waiting[tenant]):
            shard.submit(
                f"q.0-{tenant}{i:02d}", tenant=tenant, tokens=tokens, weight=weights[tenant]
            )
    most = max(max(a), max(b) / weight)
    done = {"a": 0.0, "b": 0.0}
    for tenant in served(shard, batch, len(a) + len(b)):
        done[tenant] += waiting[tenant].pop(0) / weights[tenant]
        shard.run(shard.scripts.prune(60_000))
        if not waiting["a"] or not waiting["b"]:
            break
        assert abs(done["a"] - done["b"]) <= most + 1e-6
    for _ in range(len(a) + len(b)):
        for rid, token, *_ in shard.claim(n=50)[5:]:
            shard.finish(rid.decode(), token.decode())


@few
@given(costs, costs, st.integers(1, 25))
def test_a_tenant_that_was_idle_has_saved_nothing_up(
    shard: Shard, old: list[int], new: list[int], n_before: int
) -> None:
    empty(shard)
    shard.submit("q.0-new-once", tenant="new", tokens=1)
    shard.finish(*shard.grant())
    for i, tokens in enumerate(old * 3):
        shard.submit(f"q.0-old{i:03d}", tenant="old", tokens=tokens)
    order = list(served(shard, 1, n_before))
    assert set(order) == {"old"}
    for i, tokens in enumerate(new):
        shard.submit(f"q.0-new{i:03d}", tenant="new", tokens=tokens)
    waiting = {"old": (old * 3)[n_before:], "new": list(new)}
    since = {"old": 0, "new": 0}
    for tenant in served(shard, 1, len(waiting["old"]) + len(new)):
        since[tenant] += waiting[tenant].pop(0)
        if not waiting["old"] or not waiting["new"]:
            break
        # What the other was ahead when it came, and one request as ever.
        assert abs(since["old"] - since["new"]) <= 2 * max(old + new)
    for rid, token, *_ in shard.claim(n=100)[5:]:
        shard.finish(rid.decode(), token.decode())


def test_ten_thousand_of_one_tenant_delay_anothers_first_by_one_turn_at_most(shard: Shard) -> None:
    flood(shard, "flood", 10_000)
    assert list(served(shard, 64, 64)) == ["flood"] * 64
    shard.submit("q.0-first", tenant="other")
    assert "other" in list(served(shard, 1, 2))
    empty(shard)


@pytest.mark.parametrize("weight", [1, 4])
def test_a_tenants_share_follows_its_weight(shard: Shard, weight: int) -> None:
    for i in range(40):
        shard.submit(f"q.0-a{i:02d}", tenant="a", tokens=10)
        shard.submit(f"q.0-b{i:02d}", tenant="b", tokens=10, weight=weight)
    order = list(served(shard, 10, 20))
    assert order.count("b") == pytest.approx(20 * weight / (1 + weight), abs=1)
    empty(shard)


def test_tags_of_tenants_that_come_and_go_do_not_pile_up_while_the_queue_is_never_idle(
    shard: Shard,
) -> None:
    tags = shard.keys.fixed("tags")
    shard.submit("q.0-stays", tenant="stays")
    for i in range(1200):
        shard.client.hset(tags, f"f{i % 3}:gone{i}", 1000 + i)
    sizes = [shard.client.hlen(tags)]
    while (
        "f0:gone0" in (left := {name.decode() for name in shard.client.hkeys(tags)})
        or len(left) > 1
    ):
        assert shard.run(shard.scripts.prune(60_000)) == [0]
        sizes.append(shard.client.hlen(tags))
        assert len(sizes) < 12
    assert left == {"f1:stays"}
    assert max(before - after for before, after in pairwise(sizes)) < 600


def test_what_a_tenant_took_back_does_not_hold_it_up_later(shard: Shard) -> None:
    flood(shard, "hasty", 200)
    for i in range(200):
        shard.end(f"q.0-hasty{i:05d}", "cancel")
    flood(shard, "busy", 40)
    shard.run(shard.scripts.prune(60_000))
    assert list(served(shard, 1, 5)) == ["busy"] * 5
    shard.submit("q.0-again", tenant="hasty")
    assert "hasty" in list(served(shard, 1, 2))
    empty(shard)


def test_many_that_were_for_later_do_not_pass_another_tenants_first(shard: Shard) -> None:
    for i in range(30):
        shard.submit(f"q.0-late{i:02}", tenant="late", not_before_ms=60_000)
    flood(shard, "busy", 40)
    assert list(served(shard, 1, 40)) == ["busy"] * 40
    shard.advance(60_000)
    shard.run(shard.scripts.promote(100))
    shard.submit("q.0-first", tenant="other")
    assert "other" in list(served(shard, 1, 3))
    empty(shard)


def test_idle_tenants_are_forgotten_only_once_they_have_nothing_live(shard: Shard) -> None:
    tags = shard.keys.fixed("tags")
    flood(shard, "a", 3)
    handle = shard.grant()
    shard.run(shard.scripts.prune(60_000))
    assert shard.client.hget(tags, "f1:a") == b"30"
    for i in (1, 2):
        shard.end(f"q.0-a{i:05d}", "cancel")
    shard.run(shard.scripts.prune(60_000))
    assert shard.client.hget(tags, "f1:a") == b"30"
    shard.submit("q.0-b", tenant="b")
    shard.finish(*handle)
    shard.run(shard.scripts.prune(60_000))
    assert shard.client.hget(tags, "f1:a") is None
