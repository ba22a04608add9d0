"""Dead letters by the scripts alone: what becomes one, how many bytes are kept, and how one becomes a request again."""

from __future__ import annotations

from typing import Any

import pytest

from shared import codec
from tests.queue.harness import NO_CAPS, TTL_MS, Shard

META: list[Any] = [1, "tenant", 7, 60_000, 60_000, "", "{}", "d", [], "", "", 0, 1, 0]


def kill(shard: Shard, rid: str, *, max_bytes: int = 1 << 20, **options: Any) -> None:
    """It uses up its one attempt, and the housekeeper ends it."""
    shard.submit(rid, **options)
    granted, token = shard.grant()
    assert granted == rid
    assert shard.nack("retry", rid, token, max_attempts=1) == [b"DEAD"]
    ended = shard.run(end(shard, rid, max_bytes))
    assert ended[0] == b"OK"


def end(shard: Shard, rid: str, max_bytes: int) -> Any:
    return shard.scripts.end(
        rid, "dead", "", "", "", TTL_MS, [], "", part_ttl_ms=1000, letters_max_bytes=max_bytes
    )


def letters(shard: Shard) -> list[tuple[str, dict[bytes, bytes]]]:
    entries = shard.client.xrange(shard.keys.fixed("dlq"))
    return [(eid.decode(), fields) for eid, fields in entries]


def kept_bytes(shard: Shard) -> int:
    return int(shard.client.hget(shard.keys.fixed("stat"), "dlq_bytes") or 0)


def requeue(shard: Shard, letter: str, rid: str, **options: Any) -> list[Any]:
    caps = options.pop("caps", NO_CAPS)
    meta = [*META[:8], options.pop("depends", []), *META[9:]]
    call = shard.scripts.requeue_letter(letter, rid, b"again", meta, caps)
    reply: list[Any] = shard.run(call)
    return reply


def test_a_request_whose_attempts_are_used_up_is_kept_with_its_payload(shard: Shard) -> None:
    kill(shard, "q.0-a", payload=b"the payload")
    ((_, letter),) = letters(shard)
    assert (letter[b"i"], letter[b"p"]) == (b"q.0-a", b"the payload")
    assert letter[b"o"] == shard.client.get(shard.keys.outcome("q.0-a"))
    assert codec.decode_outcome(letter[b"o"]).code == "attempts_exhausted"
    assert kept_bytes(shard) == sum(map(len, letter.values()))


def test_a_poison_prompt_is_kept_once_its_crashes_are_used_up(shard: Shard) -> None:
    shard.submit("q.0-a", payload=b"poison")
    for verdict in (b"OK", b"OK", b"DEAD"):
        rid, token = shard.grant()
        assert shard.nack("suspect", rid, token) == [verdict]
    assert shard.end("q.0-a", "dead")[0] == b"OK"
    assert [fields[b"p"] for _, fields in letters(shard)] == [b"poison"]


def test_what_a_worker_could_not_read_is_kept(shard: Shard) -> None:
    shard.submit("q.0-a", payload=b"\xc1 garbage")
    rid, token = shard.grant()
    shard.finish(rid, token, state="E", code="bad_record", body=None)
    assert [fields[b"p"] for _, fields in letters(shard)] == [b"\xc1 garbage"]
    assert shard.finish(rid, token, state="E", code="bad_record") == [b"ALREADY"]
    assert len(letters(shard)) == 1


@pytest.mark.parametrize("ending", ["error", "cancel", "expire", "payload_lost", "dependency"])
def test_no_other_end_leaves_a_letter(shard: Shard, ending: str) -> None:
    shard.submit("q.0-a", queue_timeout_ms=2000)
    if ending == "error":
        rid, token = shard.grant()
        shard.finish(rid, token, state="E", code="engine_error", body=None)
    elif ending == "payload_lost":
        shard.client.delete(shard.keys.fixed("in"))
        shard.claim()
        assert shard.end("q.0-a", "dead")[0] == b"OK"
    elif ending == "dependency":
        shard.submit("q.0-b", depends=["q.0-a"])
        shard.end("q.0-a", "cancel")
        assert shard.end("q.0-b", "dead")[0] == b"OK"
    else:
        shard.advance(2100)
        assert shard.end("q.0-a", ending)[0] == b"OK"
    assert letters(shard) == []


def test_above_its_bytes_the_oldest_letters_go(shard: Shard) -> None:
    for i in range(6):
        kill(shard, f"q.0-{i}", payload=b"x" * 1000, max_bytes=4000)
        assert kept_bytes(shard) <= 4000
    assert [fields[b"i"] for _, fields in letters(shard)] == [b"q.0-3", b"q.0-4", b"q.0-5"]
    assert kept_bytes(shard) == sum(len(v) for _, fields in letters(shard) for v in fields.values())


def test_a_letter_that_is_too_large_by_itself_is_not_kept_and_costs_no_error(shard: Shard) -> None:
    kill(shard, "q.0-a", payload=b"x" * 5000, max_bytes=4000)
    kill(shard, "q.0-b", max_bytes=0)
    assert letters(shard) == []
    assert kept_bytes(shard) == 0


def test_a_lowered_bound_is_kept_from_the_next_letter_on(shard: Shard) -> None:
    for i in range(12):
        kill(shard, f"q.0-{i:02}", payload=b"x" * 1000)
    kill(shard, "q.0-last", payload=b"x" * 1000, max_bytes=2000)
    assert [fields[b"i"] for _, fields in letters(shard)] == [b"q.0-last"]


def test_many_small_letters_go_for_a_large_one(shard: Shard) -> None:
    for i in range(100):
        kill(shard, f"q.0-{i:02}")
    large = bytes(kept_bytes(shard) * 3 // 4)
    bound = kept_bytes(shard) + 1000
    kill(shard, "q.0-large", payload=large, max_bytes=bound)
    assert letters(shard)[-1][1][b"i"] == b"q.0-large"
    assert 1 < len(letters(shard)) < 40
    assert kept_bytes(shard) <= bound


def test_one_for_which_too_many_would_have_to_go_is_not_kept_and_none_go_for_it(
    shard: Shard,
) -> None:
    for i in range(300):
        kill(shard, f"q.0-{i:03}")
    bound = kept_bytes(shard)
    kill(shard, "q.0-large", payload=bytes(bound * 9 // 10), max_bytes=bound)
    assert len(letters(shard)) == 300
    kill(shard, "q.0-small", max_bytes=bound)
    assert letters(shard)[-1][1][b"i"] == b"q.0-small"
    assert kept_bytes(shard) <= bound


def test_letters_that_were_removed_by_hand_make_room_for_nothing_twice(shard: Shard) -> None:
    for i in range(5):
        kill(shard, f"q.0-{i}", payload=bytes(1000))
    for letter, _ in letters(shard)[:4]:
        shard.client.xdel(shard.keys.fixed("dlq"), letter)
    kill(shard, "q.0-more", payload=bytes(1000), max_bytes=3000)
    assert [fields[b"i"] for _, fields in letters(shard)] == [b"q.0-more"]
    assert kept_bytes(shard) < 3000


def test_a_letter_that_is_larger_than_all_may_be_makes_no_other_go(shard: Shard) -> None:
    kill(shard, "q.0-a")
    kill(shard, "q.0-large", payload=bytes(5000), max_bytes=2000)
    assert [fields[b"i"] for _, fields in letters(shard)] == [b"q.0-a"]


def test_letters_that_somebody_removed_do_not_count_for_ever(shard: Shard) -> None:
    kill(shard, "q.0-a", payload=b"x" * 1000)
    shard.client.delete(shard.keys.fixed("dlq"))
    kill(shard, "q.0-b", payload=b"x" * 1000, max_bytes=2000)
    assert [fields[b"i"] for _, fields in letters(shard)] == [b"q.0-b"]


def test_a_letter_becomes_a_new_request_with_nothing_counted_against_it(shard: Shard) -> None:
    kill(shard, "q.0-a")
    letter = letters(shard)[0][0]
    shard.advance(5000)
    assert requeue(shard, letter, "q.0-new")[:2] == [b"OK", 0]
    record = shard.record("q.0-new")
    assert record is not None
    assert (record.tenant, record.lane, record.cost_tokens) == ("tenant", 1, 7)
    assert (record.attempts, record.crashes, record.grants) == (0, 0, 0)
    assert record.submitted_ms == shard.now_ms
    assert record.deadline_ms == shard.now_ms + 60_000
    assert (letters(shard), kept_bytes(shard)) == ([], 0)
    assert shard.state("q.0-a") == "E", "what was told of the old one stays"
    rid, token = shard.grant()
    assert rid == "q.0-new"
    shard.finish(rid, token)


def test_a_letter_requeued_twice_is_one_request(shard: Shard) -> None:
    kill(shard, "q.0-a")
    letter = letters(shard)[0][0]
    assert requeue(shard, letter, "q.0-new")[0] == b"OK"
    assert requeue(shard, letter, "q.0-new")[0] == b"DUP"
    rid, token = shard.grant()
    shard.finish(rid, token)
    assert requeue(shard, letter, "q.0-new") == [b"DONE"]
    assert requeue(shard, letter, "q.0-other") == [b"GONE"]


def test_a_full_queue_keeps_the_letter(shard: Shard) -> None:
    kill(shard, "q.0-a")
    letter = letters(shard)[0][0]
    shard.submit("q.0-b")
    assert requeue(shard, letter, "q.0-new", caps=(1, 0, 0, 0)) == [b"FULL", b"requests", 1]
    assert len(letters(shard)) == 1
    assert shard.state("q.0-new") is None


def test_a_dead_dependent_is_requeued_while_its_predecessors_answer_is_there(shard: Shard) -> None:
    shard.submit("q.0-a", tenant="tenant")
    rid, token = shard.grant()
    shard.finish(rid, token)
    kill(shard, "q.0-b", tenant="tenant", depends=["q.0-a"])
    letter = letters(shard)[0][0]
    shard.run(shard.scripts.drop(["q.0-a"]))
    reply = requeue(shard, letter, "q.0-new", depends=["q.0-a"])
    assert reply == [b"UNKNOWN", b"q.0-a"]
    assert len(letters(shard)) == 1


def test_a_letter_is_taken_away_once(shard: Shard) -> None:
    kill(shard, "q.0-a")
    letter = letters(shard)[0][0]
    assert shard.run(shard.scripts.drop_letter(letter)) == [b"OK"]
    assert shard.run(shard.scripts.drop_letter(letter)) == [b"GONE"]
    assert (letters(shard), kept_bytes(shard)) == ([], 0)


def test_drop_takes_answers_and_parts_and_leaves_the_outcomes(shard: Shard) -> None:
    for rid in ("q.0-a", "q.0-b"):
        shard.submit(rid)
        _, token = shard.grant()
        shard.client.xadd(shard.keys.part(rid), {"d": "x"})
        shard.finish(rid, token)
        assert 0 < shard.client.pttl(shard.keys.part(rid)) <= 60_000, "a part lives as its answer"
    assert shard.run(shard.scripts.drop(["q.0-a", "q.0-b"])) == [4]
    assert shard.run(shard.scripts.drop(["q.0-a", "q.0-b"])) == [0]
    assert shard.state("q.0-a") == shard.state("q.0-b") == "F"
