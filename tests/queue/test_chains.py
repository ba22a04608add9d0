"""Chains: who waits for whom, and what becomes of it when the other ends; by the scripts alone but for the last."""

from __future__ import annotations

import pytest

from shared import codec
from shared.errors import BrokerLost
from shared.queue.merging import merged
from tests.queue.harness import NO_CAPS, Shard
from tests.queue.pair import FREE, Pair, serving


def finish(shard: Shard, rid: str, **options: object) -> None:
    """Claim the one that is ready, and finish it."""
    granted, token = shard.grant()
    assert granted == rid
    assert shard.finish(rid, token, **options)[0] == b"OK"  # type: ignore[arg-type]


def fail(shard: Shard, rid: str) -> None:
    granted, token = shard.grant()
    assert granted == rid
    shard.finish(rid, token, state="E", code="engine_error", body=None)


def sweep(shard: Shard) -> list[str]:
    """One round of the housekeeper."""
    due = [rid.decode() for rid in shard.run(shard.scripts.sweep(200))[0]]
    for rid in due:
        if shard.end(rid, "expire") == [b"NOTDUE"]:
            shard.end(rid, "dead")
    return due


def code(shard: Shard, rid: str) -> str:
    outcome = shard.outcome(rid)
    assert outcome is not None
    return outcome.code


def kinds(shard: Shard, rid: str) -> list[str]:
    known = shard.record(rid) or shard.outcome(rid)
    assert known is not None
    return [event.kind for event in known.events]


def test_a_dependent_waits_and_is_claimable_in_the_step_that_finishes_its_predecessor(
    shard: Shard,
) -> None:
    shard.submit("q.0-a")
    assert shard.submit("q.0-b", depends=["q.0-a"])[:2] == [b"OK", -1]
    assert shard.state("q.0-b") == "W"
    rid, token = shard.grant()
    assert rid == "q.0-a"
    assert shard.claim()[5:] == []
    shard.client.delete(shard.keys.fixed("bell"))
    shard.finish(rid, token)
    assert shard.client.exists(shard.keys.fixed("bell")), "nobody is told of it"
    assert shard.state("q.0-b") == "Q"
    assert shard.grant("w2")[0] == "q.0-b"
    assert kinds(shard, "q.0-b") == ["submitted", "waits", "ready", "claimed"]


def test_a_waiting_request_is_looked_at_without_a_position(shard: Shard) -> None:
    shard.submit("q.0-a")
    shard.submit("q.0-b", depends=["q.0-a"])
    _, kind, _, position, _ = shard.run(shard.scripts.peek("q.0-b"))
    assert (kind, position) == (b"live", -1)
    assert shard.submit("q.0-b", depends=["q.0-a"])[:2] == [b"DUP", -1]


def test_it_takes_its_place_when_it_becomes_ready(shard: Shard) -> None:
    shard.submit("q.0-a")
    shard.submit("q.0-b", depends=["q.0-a"])
    shard.submit("q.0-meanwhile")
    finish(shard, "q.0-a")
    shard.submit("q.0-later")
    assert [shard.grant()[0] for _ in range(3)] == ["q.0-meanwhile", "q.0-b", "q.0-later"]


def test_64_that_become_ready_at_once_do_not_pass_another_tenants_first(shard: Shard) -> None:
    shard.submit("q.0-a", tenant="chained")
    for i in range(64):
        shard.submit(f"q.0-chained{i:02}", tenant="chained", depends=["q.0-a"])
    for i in range(20):
        shard.submit(f"q.0-before{i:02}", tenant="other")
    rid, token = shard.grant()
    while rid != "q.0-a":
        shard.finish(rid, token)
        rid, token = shard.grant()
    for _ in range(20):
        shard.finish(*shard.grant())
    shard.finish(rid, token)
    shard.submit("q.0-first", tenant="third")
    assert "q.0-first" in [shard.grant()[0] for _ in range(3)]


def test_fan_in_waits_for_the_last_of_all(shard: Shard) -> None:
    preds = [f"q.0-p{i:02}" for i in range(16)]
    for pred in preds:
        shard.submit(pred)
    shard.submit("q.0-sum", depends=preds)
    for pred in preds:
        assert shard.state("q.0-sum") == "W"
        finish(shard, pred)
        shard.check()
    assert shard.state("q.0-sum") == "Q"
    finish(shard, "q.0-sum")


def test_fan_out_of_64_is_ready_at_once_and_a_65th_is_refused(shard: Shard) -> None:
    shard.submit("q.0-a")
    for i in range(64):
        assert shard.submit(f"q.0-d{i:02}", depends=["q.0-a"])[0] == b"OK"
    assert shard.submit("q.0-more", depends=["q.0-a"]) == [b"CROWDED", b"q.0-a"]
    assert shard.state("q.0-more") is None
    assert shard.end("q.0-d00", "cancel")[0] == b"OK"
    assert shard.submit("q.0-more", depends=["q.0-a"])[0] == b"OK"
    finish(shard, "q.0-a")
    assert len(shard.claim(n=64)[5:]) == 64


def test_a_diamond_runs_its_last_once(shard: Shard) -> None:
    shard.submit("q.0-top")
    shard.submit("q.0-left", depends=["q.0-top"])
    shard.submit("q.0-right", depends=["q.0-top"])
    shard.submit("q.0-bottom", depends=["q.0-left", "q.0-right"])
    for rid in ("q.0-top", "q.0-left", "q.0-right", "q.0-bottom"):
        finish(shard, rid)
        shard.check()
    assert shard.claim()[5:] == []


@pytest.mark.parametrize("ending", ["error", "cancel", "expiry", "dead"])
def test_whatever_ends_a_predecessor_without_an_answer_ends_its_dependents(
    shard: Shard, ending: str
) -> None:
    shard.api("api")
    shard.submit("q.0-a", queue_timeout_ms=2000)
    shard.submit("q.0-b", depends=["q.0-a"], api="api")
    if ending == "error":
        fail(shard, "q.0-a")
    elif ending == "cancel":
        shard.end("q.0-a", "cancel")
    elif ending == "expiry":
        shard.advance(2100)
        assert sweep(shard) == ["q.0-a"]
    else:
        rid, token = shard.grant()
        shard.nack("retry", rid, token, max_attempts=1)
        assert sweep(shard) == ["q.0-a"]
    assert shard.state("q.0-b") == "K"
    assert shard.claim()[5:] == []
    shard.check()
    assert sweep(shard) == ["q.0-b"]
    assert code(shard, "q.0-b") == "dependency_failed"
    assert shard.notices("api") == ["q.0-b"]
    assert kinds(shard, "q.0-b") == ["submitted", "waits", "dead", "ended"]


def test_failure_goes_down_a_chain_of_many_in_rounds(shard: Shard) -> None:
    rids = [f"q.0-{i:02}" for i in range(20)]
    for before, rid in zip(["", *rids], rids, strict=False):
        shard.submit(rid, depends=[before] if before else [])
    fail(shard, rids[0])
    for rid in rids[1:]:
        assert sweep(shard) == [rid]
        assert code(shard, rid) == "dependency_failed"
        shard.check()
    assert sweep(shard) == []


def test_one_failed_predecessor_of_several_is_enough(shard: Shard) -> None:
    shard.submit("q.0-a")
    shard.submit("q.0-b", queue_timeout_ms=1000)
    shard.submit("q.0-c", depends=["q.0-a", "q.0-b"])
    shard.end("q.0-a", "cancel")
    shard.check()
    finish(shard, "q.0-b")
    assert shard.state("q.0-c") == "K", "another one's end does not mend it"
    assert sweep(shard) == ["q.0-c"]
    assert code(shard, "q.0-c") == "dependency_failed"


@pytest.mark.parametrize("how", ["cancel", "expire"])
def test_a_dependent_that_ends_early_is_forgotten_by_its_predecessors(
    shard: Shard, how: str
) -> None:
    for pred in ("q.0-a", "q.0-b"):
        shard.submit(pred)
    shard.submit("q.0-c", depends=["q.0-a", "q.0-b"], queue_timeout_ms=2000)
    shard.submit("q.0-d", depends=["q.0-b"])
    shard.advance(2100)
    assert shard.end("q.0-c", how)[0] == b"OK"
    assert code(shard, "q.0-c") == ("cancelled" if how == "cancel" else "expired")
    shard.check()
    finish(shard, "q.0-a")
    finish(shard, "q.0-b")
    finish(shard, "q.0-d")
    assert shard.client.exists(shard.keys.fixed("deps")) == 0


def test_a_predecessor_that_finished_long_ago_is_as_good_and_its_answer_is_kept_to_the_deadline(
    shard: Shard,
) -> None:
    shard.submit("q.0-a")
    finish(shard, "q.0-a")
    body = shard.keys.body("q.0-a")
    assert shard.client.pttl(body) <= 60_000
    assert shard.submit("q.0-b", depends=["q.0-a"], timeout_ms=300_000)[:2] == [b"OK", 0]
    assert 290_000 < shard.client.pttl(body) <= 300_000
    assert shard.submit("q.0-c", depends=["q.0-a"], timeout_ms=100_000)[0] == b"OK"
    assert shard.client.pttl(body) > 290_000, "a nearer deadline shortens nothing"
    assert shard.state("q.0-b") == "Q"


def test_an_answer_lives_as_long_as_its_last_dependent_may(shard: Shard) -> None:
    shard.submit("q.0-a")
    shard.submit("q.0-b", depends=["q.0-a"], timeout_ms=500_000)
    shard.submit("q.0-c", depends=["q.0-a"], timeout_ms=200_000)
    finish(shard, "q.0-a")
    assert 490_000 < shard.client.pttl(shard.keys.body("q.0-a")) <= 500_000


def test_what_became_of_it_is_known_as_long_as_its_answer_is_needed(shard: Shard) -> None:
    """An answer without its outcome would be an unknown request's."""
    day_ms, outcome = 24 * 3_600_000, shard.keys.outcome("q.0-a")
    shard.submit("q.0-a", timeout_ms=3 * day_ms)
    shard.submit("q.0-b", depends=["q.0-a"], timeout_ms=2 * day_ms)
    finish(shard, "q.0-a")
    assert shard.client.pttl(outcome) > 1.9 * day_ms
    shard.submit("q.0-c", depends=["q.0-a"], timeout_ms=3 * day_ms)
    assert shard.client.pttl(outcome) > 2.9 * day_ms
    assert shard.client.pttl(shard.keys.body("q.0-a")) > 2.9 * day_ms


def test_a_list_of_dependents_that_somebody_damaged_costs_none_but_them(shard: Shard) -> None:
    shard.submit("q.0-a")
    shard.submit("q.0-b", depends=["q.0-a"])
    shard.client.hset(shard.keys.fixed("deps"), "q.0-a", b"\xc1 no list")
    finish(shard, "q.0-a")
    assert shard.state("q.0-a") == "F"
    assert shard.state("q.0-b") == "W", "its deadline ends it"
    assert shard.end("q.0-b", "cancel")[0] == b"OK"


def test_a_predecessor_that_did_not_finish_fails_a_later_dependent_too(shard: Shard) -> None:
    shard.submit("q.0-a")
    shard.end("q.0-a", "cancel")
    assert shard.submit("q.0-b", depends=["q.0-a"])[0] == b"OK"
    assert shard.state("q.0-b") == "K"
    assert shard.submit("q.0-b", depends=["q.0-a"])[0] == b"DUP"
    assert sweep(shard) == ["q.0-b"]
    assert code(shard, "q.0-b") == "dependency_failed"


def test_a_failed_and_a_running_predecessor_leave_nothing_behind(shard: Shard) -> None:
    shard.submit("q.0-a")
    shard.submit("q.0-b")
    shard.end("q.0-a", "cancel")
    assert shard.submit("q.0-c", depends=["q.0-a", "q.0-b"])[0] == b"OK"
    shard.check()
    assert shard.client.exists(shard.keys.fixed("deps")) == 0
    assert sweep(shard) == ["q.0-c"]


def test_unknown_predecessors_are_refused_and_nothing_changes(shard: Shard) -> None:
    shard.submit("q.0-a")
    shard.submit("q.0-theirs", tenant="other")
    shard.submit("q.0-gone")
    finish(shard, "q.0-a")
    finish(shard, "q.0-theirs")
    finish(shard, "q.0-gone")
    shard.submit("q.0-a2")
    shard.submit("q.0-theirs2", tenant="other")
    shard.run(shard.scripts.drop(["q.0-gone"]))
    before = shard.client.hgetall(shard.keys.fixed("ten"))
    for pred in ("q.0-never", "q.0-theirs", "q.0-theirs2", "q.0-gone", "q.0-b"):
        reply = shard.submit("q.0-b", depends=["q.0-a", "q.0-a2", pred])
        assert reply == [b"UNKNOWN", pred.encode()]
        assert shard.state("q.0-b") is None
    assert shard.client.hgetall(shard.keys.fixed("ten")) == before
    shard.check()


@pytest.mark.parametrize("has_ended", [False, True])
def test_a_list_is_no_predecessor_but_its_items_are(shard: Shard, has_ended: bool) -> None:
    scripts = shard.scripts
    shard.run(scripts.reserve("q.0-p", 1, 10, "anonymous", "d", "", "{}", NO_CAPS))
    meta = [1, "anonymous", 0, 600_000, 600_000, "", "{}", "", [], "", "", 0, 1, 0]
    shard.run(scripts.submit_many("q.0-p", 0, meta, [(b"p", 10, "{}")]))
    if has_ended:
        finish(shard, "q.0-p.0", parent="q.0-p")
    assert shard.submit("q.0-b", depends=["q.0-p"]) == [b"UNKNOWN", b"q.0-p"]
    assert shard.submit("q.0-b", depends=["q.0-p.0"])[0] == b"OK"
    assert shard.state("q.0-b") == ("Q" if has_ended else "W")


def test_caps_hold_for_dependents_and_a_full_queue_forgets_them(shard: Shard) -> None:
    shard.submit("q.0-a")
    reply = shard.submit("q.0-b", depends=["q.0-a"], caps=(1, 0, 0, 0))
    assert reply == [b"FULL", b"requests", 1]
    shard.check()


def test_a_delay_begins_to_count_at_the_submit_not_at_the_predecessors_end(shard: Shard) -> None:
    shard.submit("q.0-a")
    shard.submit("q.0-soon", depends=["q.0-a"], not_before_ms=5000)
    shard.submit("q.0-late", depends=["q.0-a"], not_before_ms=9000)
    assert shard.state("q.0-soon") == shard.state("q.0-late") == "W"
    shard.advance(6000)
    finish(shard, "q.0-a")
    assert shard.state("q.0-soon") == "Q"
    assert shard.state("q.0-late") == "L"
    shard.check()
    assert shard.run(shard.scripts.promote(10)) == [0, 0]
    shard.advance(3000)
    assert shard.run(shard.scripts.promote(10)) == [1, 0]
    assert shard.state("q.0-late") == "Q"


def test_a_late_result_of_a_reaped_predecessor_still_frees_its_dependent(shard: Shard) -> None:
    shard.submit("q.0-a")
    shard.submit("q.0-b", depends=["q.0-a"])
    rid, token = shard.grant()
    shard.start(rid, token)
    shard.advance(16_000)
    shard.reap()
    assert shard.state("q.0-b") == "W"
    assert shard.finish(rid, token)[0] == b"OK"
    assert shard.state("q.0-b") == "Q"


def test_dependents_that_are_submitted_in_one_command_look_at_their_own_predecessors(
    shard: Shard,
) -> None:
    for rid in ("q.0-a", "q.0-b"):
        shard.submit(rid)
        finish(shard, rid)
    meta = [1, "anonymous", 1, 300_000, 300_000, "", "{}", "d", [], "", "", 0, 1, 0]
    calls = [
        shard.scripts.submit(f"q.0-{i}", b"p", [*meta[:8], preds, *meta[9:]], NO_CAPS)
        for i, preds in enumerate((["q.0-a"], ["q.0-a", "q.0-b"], ["q.0-never", "q.0-b"]))
    ]
    replies = shard.run(merged(calls))
    assert [reply[0] for reply in replies] == [b"OK", b"OK", b"UNKNOWN"]
    for rid in ("q.0-a", "q.0-b"):
        assert shard.client.pttl(shard.keys.body(rid)) > 290_000


def test_every_step_of_a_chain_may_be_sent_twice(shard: Shard) -> None:
    shard.submit("q.0-a")
    shard.submit("q.0-b", depends=["q.0-a"])
    assert shard.submit("q.0-b", depends=["q.0-a"])[0] == b"DUP"
    assert codec.unpack(shard.client.hget(shard.keys.fixed("deps"), "q.0-a")) == ["q.0-b"]
    rid, token = shard.grant()
    assert shard.finish(rid, token)[0] == b"OK"
    assert shard.finish(rid, token) == [b"ALREADY"]
    finish(shard, "q.0-b")
    assert shard.submit("q.0-b", depends=["q.0-a"]) == [b"DONE"]


async def test_a_chain_that_the_broker_forgot_is_submitted_again_while_its_waiters_hold_it(
    pair: Pair,
) -> None:
    first = pair.req("one")
    second = pair.req("two", depends_on=(first.id,))
    for req in (first, second):
        await pair.producer.submit(req, FREE, watch=True)
    await forget(pair)
    async with serving(pair):
        for req in (first, second):
            answer = await pair.producer.wait(req.id, 20)
            assert answer.outcome.state == "F"


async def test_who_depended_on_what_the_broker_forgot_is_told_so(pair: Pair) -> None:
    first = pair.req("one")
    second = pair.req("two", depends_on=(first.id,))
    await pair.producer.submit(first, FREE)
    await pair.producer.submit(second, FREE, watch=True)
    await forget(pair)
    with pytest.raises(BrokerLost):
        await pair.producer.wait(second.id, 20)


async def forget(pair: Pair) -> None:
    """As FLUSHALL does, for this queue alone: the broker is shared."""
    line = pair.producer._line
    keys = await line.run(("KEYS", f"sl:{{{pair.settings.queue_name}:*"))
    await line.run(("UNLINK", *keys))
