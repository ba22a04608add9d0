"""Every script run twice is as run once: a lost reply is answered by sending the call again, so this must be."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from shared.queue.loader import NAMES
from shared.queue.scripts import Call
from tests.protocol.reader import Reader
from tests.queue.harness import INFO, LEASE_MS, LETTERS_MAX_BYTES, NO_CAPS, TTL_MS, Shard
from tests.queue.test_dead_letters import kill, letters

META: list[Any] = [1, "t", 7, 60_000, 60_000, "a", "{}", "d", [], "", "", 0, 1, 0]


def submit(shard: Shard) -> Call:
    return shard.scripts.submit("q.0-new", b"x", META, NO_CAPS)


def reserve(shard: Shard) -> Call:
    return shard.scripts.reserve("q.0-list", 2, 14, "t", "d", "a", "{}", NO_CAPS)


def submit_many(shard: Shard) -> Call:
    shard.run(reserve(shard))
    return shard.scripts.submit_many("q.0-list", 0, META, [(b"x", 7, "{}"), (b"y", 7, "{}")])


def claim(shard: Shard) -> Call:
    shard.submit("q.0-r")
    return shard.scripts.claim("w", 1, 4, 1 << 20, LEASE_MS, True, 8)


def running(shard: Shard) -> tuple[str, str]:
    shard.submit("q.0-r", api="a")
    rid, token = shard.grant("w")
    shard.start(rid, token, "w")
    return rid, token


def beat(shard: Shard) -> Call:
    rid, token = running(shard)
    shard.scripts.at_ms += 100
    return shard.scripts.beat("w", LEASE_MS, 1, INFO, {rid: (token, True)})


def emit(shard: Shard) -> Call:
    rid, token = running(shard)
    return shard.scripts.emit("w", ["a"], [(rid, token, 0, "once upon")])


def finish(shard: Shard) -> Call:
    rid, token = running(shard)
    what = ("F", "", "", "{}", b"\x81\xa4text\xa2hi", TTL_MS, TTL_MS, 1024)
    return shard.scripts.finish(
        rid, "w", token, *what, ["a"], "", letters_max_bytes=LETTERS_MAX_BYTES
    )


def end(shard: Shard) -> Call:
    rid, _ = running(shard)
    what = ("cancel", "cancelled", "by its client", "w")
    return shard.scripts.end(
        rid, *what, TTL_MS, ["a"], "", part_ttl_ms=1000, letters_max_bytes=LETTERS_MAX_BYTES
    )


def end_missing(shard: Shard) -> Call:
    shard.run(reserve(shard))
    shard.advance(40_000)
    return shard.scripts.end_missing("q.0-list", "E", "submit_incomplete", 0, 2, TTL_MS, ["a"])


def nack(shard: Shard) -> Call:
    held = [running(shard)]
    bounds = {"max_attempts": 3, "max_crashes": 2, "delay_ms": 500}
    return shard.scripts.nack("w", "retry", "why", held, **bounds)


def reap(shard: Shard) -> Call:
    running(shard)
    shard.advance(LEASE_MS + 1000)
    return shard.scripts.reap(10, 2, 5)


def sweep(shard: Shard) -> Call:
    shard.submit("q.0-r", queue_timeout_ms=1000)
    shard.advance(2000)
    return shard.scripts.sweep(10)


def promote(shard: Shard) -> Call:
    shard.run(nack(shard))
    shard.advance(1000)
    return shard.scripts.promote(10)


def tick(shard: Shard) -> Call:
    return shard.scripts.tick(LEASE_MS, "a")


def peek(shard: Shard) -> Call:
    running(shard)
    return shard.scripts.peek("q.0-r")


def attach(shard: Shard) -> Call:
    shard.run(emit(shard))
    return shard.scripts.attach("q.0-r", "b", "0-0", 10)


def notify(shard: Shard) -> Call:
    shard.run(finish(shard))
    return shard.scripts.notify("q.0-r", "a", 1024)


def settle(shard: Shard) -> Call:
    rid, token = running(shard)
    shard.end(rid, "cancel")
    return shard.scripts.settle(rid, "w", token, "{}", 3)


def stats(shard: Shard) -> Call:
    running(shard)
    return shard.scripts.stats()


def prune(shard: Shard) -> Call:
    shard.run(claim(shard))
    shard.beat("w", {})
    shard.advance(5 * LEASE_MS)
    return shard.scripts.prune(4 * LEASE_MS)


def set_prompt(shard: Shard) -> Call:
    return shard.scripts.set_prompt("be brief", "an operator")


def drop(shard: Shard) -> Call:
    shard.run(finish(shard))
    return shard.scripts.drop(["q.0-r"])


def list_letters(shard: Shard) -> Call:
    kill(shard, "q.0-dead")
    return shard.scripts.list_letters("+", 10)


def requeue_letter(shard: Shard) -> Call:
    kill(shard, "q.0-dead")
    ((letter, _),) = letters(shard)
    return shard.scripts.requeue_letter(letter, "q.0-risen", b"x", META, NO_CAPS)


def drop_letter(shard: Shard) -> Call:
    kill(shard, "q.0-dead")
    ((letter, _),) = letters(shard)
    return shard.scripts.drop_letter(letter)


Row = tuple[Callable[[Shard], Call], object, set[str]]
SAME = object()
# What the second run says in place of the first word; SAME: it replies the same. Then which keys it may go on with.
ROWS: dict[str, Row] = {
    "submit": (submit, b"DUP", set()),
    "reserve": (reserve, b"DUP", set()),
    "submit_many": (submit_many, b"DUP", set()),
    "claim": (claim, SAME, set()),
    "beat": (beat, SAME, set()),
    "emit": (emit, SAME, set()),
    "finish": (finish, b"ALREADY", set()),
    "end": (end, b"GONE", set()),
    "end_missing": (end_missing, b"KEYS", set()),
    "nack": (nack, b"LOST", set()),
    "reap": (reap, 0, set()),  # the second finds nothing more to take back
    "sweep": (sweep, [], set()),  # what it offered is offered again 5 s later
    "promote": (promote, 0, set()),
    "tick": (tick, SAME, set()),
    "peek": (peek, SAME, set()),
    "attach": (attach, SAME, set()),
    "notify": (notify, SAME, {"outs"}),  # a second notice, for which nobody waits any more
    "settle": (settle, b"ALREADY", set()),
    "stats": (stats, SAME, set()),
    "prune": (prune, 0, set()),
    "set_prompt": (set_prompt, SAME, set()),
    "drop": (drop, 0, set()),
    "list_letters": (list_letters, SAME, set()),
    "requeue_letter": (requeue_letter, b"DUP", set()),
    "drop_letter": (drop_letter, b"GONE", set()),
}


def test_every_script_has_its_row() -> None:
    assert set(ROWS) == set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_a_call_that_is_sent_twice_is_as_one(shard: Shard, name: str) -> None:
    check_twice_is_as_once(shard, ROWS[name], name)


def check_twice_is_as_once(shard: Shard, row: Row, name: str) -> None:
    """Runs the script of that name twice on what its row has made of the shard."""
    story, second_word, goes_on = row
    shard.api("a")
    call = story(shard)
    assert call.script.name == name
    reader = Reader(shard.client, shard.keys)
    before = reader.read()
    first = shard.run(call)
    once = reader.read()
    second = shard.run(call)
    twice = reader.read()
    changed = {
        field for field in once.__struct_fields__ if getattr(once, field) != getattr(twice, field)
    }
    assert changed <= goes_on
    if second_word is SAME:
        assert second == first
    else:
        assert second[0] == second_word
        assert second[0] != first[0], "the row tells of a first run that did nothing"
    if name not in ("tick", "peek", "stats", "list_letters", "set_prompt"):
        assert once != before, "the row tells of a first run that did nothing"
