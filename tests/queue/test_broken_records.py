"""A record that cannot be read ends as an error and costs itself alone; one of a later release is left alone."""

from __future__ import annotations

from typing import Any

import pytest

from shared import codec
from tests.queue.harness import NO_CAPS, Shard


def damage(shard: Shard, rid: str, *changes: tuple[int, Any]) -> None:
    """Sets fields of the stored record by their place, from 0."""
    fields = codec.unpack(shard.client.hget(shard.keys.fixed("live"), rid))
    for place, value in changes:
        fields[place] = value
    shard.client.hset(shard.keys.fixed("live"), rid, codec.pack(fields))


def ended(shard: Shard, rid: str) -> tuple[str, str, str]:
    outcome = shard.outcome(rid)
    assert outcome is not None
    return outcome.state, outcome.code, outcome.tenant


@pytest.mark.parametrize("how", ["cancel", "expire", "dead"])
def test_a_record_that_cannot_be_read_is_ended_as_that_whatever_was_asked(
    shard: Shard, how: str
) -> None:
    shard.submit("q.0-a", tenant="t")
    shard.submit("q.0-b")
    damage(shard, "q.0-a", (21, "no events"))
    assert shard.run(end(shard, "q.0-a", how))[0] == b"OK"
    assert ended(shard, "q.0-a") == ("E", "bad_record", "t")
    assert shard.grant()[0] == "q.0-b"


def test_of_a_record_that_is_no_record_at_all_the_room_is_given_back(shard: Shard) -> None:
    shard.submit("q.0-a", tokens=0)
    shard.client.hset(shard.keys.fixed("live"), "q.0-a", b"\xc1\xff")
    assert shard.run(end(shard, "q.0-a", "expire"))[0] == b"OK"
    assert ended(shard, "q.0-a") == ("E", "bad_record", "")
    assert shard.client.hget(shard.keys.fixed("ten"), "r") == b"0"
    # Nobody knows which entry was its own, and whose room: that goes once nothing is live.
    assert shard.run(shard.scripts.prune(60_000)) == [0]


def test_a_broken_item_does_not_keep_its_list_from_ending(shard: Shard) -> None:
    scripts, meta = shard.scripts, [1, "t", 0, 600_000, 600_000, "", "{}", "", [], "", "", 0, 1, 0]
    shard.run(scripts.reserve("q.0-p", 1, 10, "t", "d", "", "{}", NO_CAPS))
    shard.run(scripts.submit_many("q.0-p", 0, meta, [(b"p", 10, "{}")]))
    damage(shard, "q.0-p.0", (7, "late"))
    assert shard.run(end(shard, "q.0-p.0", "expire", parent="q.0-p"))[0] == b"OK"
    assert shard.state("q.0-p") == "F"


def test_who_waits_for_a_broken_record_is_told(shard: Shard) -> None:
    shard.submit("q.0-a")
    shard.submit("q.0-b", depends=["q.0-a"])
    damage(shard, "q.0-a", (5, "many"), (1, "Z"))
    assert shard.submit("q.0-c", depends=["q.0-a"]) == [b"UNKNOWN", b"q.0-a"]
    assert shard.submit("q.0-a") == [b"MISMATCH"]
    damage(shard, "q.0-a", (5, 10))
    assert shard.run(end(shard, "q.0-a", "expire"))[0] == b"OK"
    assert shard.state("q.0-b") == "K"


def test_a_result_for_a_broken_record_is_not_taken(shard: Shard) -> None:
    shard.submit("q.0-a")
    rid, token = shard.grant()
    damage(shard, rid, (9, 7))
    assert shard.finish(rid, token) == [b"LOST"]
    assert shard.run(end(shard, rid, "expire"))[0] == b"OK"
    assert shard.finish(rid, token) == [b"LOST"]


def test_a_record_of_a_later_release_is_left_alone(shard: Shard) -> None:
    shard.submit("q.0-a")
    rid, token = shard.grant()
    damage(shard, rid, (0, 2))
    assert shard.run(end(shard, rid, "cancel")) == [b"NEWER"]
    assert shard.finish(rid, token) == [b"LOST"]
    assert shard.submit(rid) == [b"MISMATCH"]
    damage(shard, rid, (0, 1))
    assert shard.finish(rid, token)[0] == b"OK"


def end(shard: Shard, rid: str, how: str, *, parent: str = "") -> Any:
    """As who cannot read the record either."""
    return shard.scripts.end(
        rid, how, "", "", "", 60_000, [], parent, part_ttl_ms=1000, letters_max_bytes=0
    )
