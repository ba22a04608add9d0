"""What must hold of a shard whatever has happened: S1 to S12 of the queue's design, by these numbers.

`check_state` looks at one state: S2 never both live and ended, S3 one entry for each live request, S4 each in the one
place of its state, S8 bounds, S10 nothing left when idle, S12 lists end with their last child. `check_again` is S7:
twice is as once. What one state cannot show is the part of `history.py`.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from msgspec.structs import replace

from shared.request import Record
from tests.protocol.state import READY, State, size_of

# What each verdict becomes when the same call is run again; one that is not here stays.
SECOND = {
    "submit": {"OK": "DUP"},
    "requeue_letter": {"OK": "DUP"},
    "reserve": {"OK": "DUP"},
    "submit_many": {"OK": "DUP"},
    "finish": {"OK": "ALREADY"},
    "end": {"OK": "GONE"},
    "nack": {"OK": "LOST", "DEAD": "LOST"},
    "settle": {"OK": "ALREADY"},
    "drop_letter": {"OK": "GONE"},
}
# Of these only the verdict is the same or known.
WORDY = {"submit", "requeue_letter", "finish", "end", "tick"}
# These go on where the first run stopped, and a second notice finds nobody waiting.
PROGRESS = {"reap", "sweep", "promote", "notify", "prune"}
PLACES = (*READY, "later", "lease")
EVENTS_MAX, APIS_MAX, PREDECESSORS_MAX, DEPENDENTS_MAX = 16, 4, 16, 64


def check_state(state: State) -> None:
    live, outcomes = state.live, state.outcomes
    assert not live.keys() & outcomes.keys(), f"S2 live and ended: {live.keys() & outcomes.keys()}"
    has_entry = {rid for rid, record in live.items() if record.entry_id}
    assert state.entries.keys() == has_entry, f"S3 {state.entries.keys() ^ has_entry}"
    assert state.sets["when"].keys() == live.keys(), "S4 when"
    places = Counter(rid for name in PLACES for rid in state.sets[name])
    for rid, record in live.items():
        _check_place(state, rid, record, places[rid])
        _check_bounds(rid, record)
    assert places.keys() <= live.keys(), f"S4 not live: {places.keys() - live.keys()}"
    _check_dependents(state)
    if state.letters:
        n_bytes = sum(size_of(letter) for letter in state.letters)
        assert n_bytes == state.stat["dlq_bytes"], "S8 bytes of dead letters"
    counted, room = {name: n for name, n in state.room.items() if n}, room_of(state)
    assert counted == room, f"S4 room {counted} {room}"
    _check_lists(state)
    if not live:
        left = [name for name in PLACES if state.sets[name]]
        left += [name for name in ("entries", "deps") if getattr(state, name)]
        assert not left, f"S10 left behind: {left}"


def _check_place(state: State, rid: str, record: Record, n_places: int) -> None:
    sets, where = state.sets, {"R": ("lease",), "L": ("later",), "Q": READY}
    here = [name for name in where.get(record.state, ()) if rid in sets[name]]
    expected = 1 if record.state in where else 0
    assert len(here) == n_places == expected, f"S4 {rid} {record.state} is in {here}"
    if here and here[0] in READY[:3]:
        assert here[0] == f"ready:{record.lane}", f"S4 {rid} in another lane"
    if record.state == "R":
        assert "" not in (record.worker, record.token), f"S5 {rid} runs for nobody"


def _check_bounds(rid: str, record: Record) -> None:
    assert len(record.events) <= EVENTS_MAX, f"S8 events of {rid}"
    assert len(record.apis) <= APIS_MAX, f"S8 readers of {rid}"
    assert len(record.depends_on) <= PREDECESSORS_MAX, f"S8 predecessors of {rid}"


def _check_dependents(state: State) -> None:
    waits = {(before, rid) for rid, record in state.live.items() for before in record.depends_on}
    for rid, record in state.live.items():
        assert record.state in "WK" or not record.depends_on, f"S4 {rid} {record.state} still waits"
        assert record.state != "W" or record.depends_on, f"S4 {rid} waits for nothing"
    known = {(before, rid) for before, after in state.deps.items() for rid in after}
    assert waits == known, f"S4 dependents {waits ^ known}"
    for before, after in state.deps.items():
        assert before in state.live, f"S4 dependents of {before}, which is not live"
        assert 0 < len(after) <= DEPENDENTS_MAX, f"S8 dependents of {before}"


def room_of(state: State) -> dict[str, int]:
    """Requests and tokens, in all and by tenant: of the live ones and of the children still to come."""
    room: dict[str, int] = {}
    for record in state.live.values():
        _add_room(room, record.tenant, 1, record.cost_tokens)
    for parent, group in state.groups.items():
        if parent not in state.outcomes:
            missing = int(group["n"]) - int(group["submitted"])
            _add_room(room, group["tenant"], missing, int(group["tokens"]) if missing else 0)
    return {name: n for name, n in room.items() if n}


def _add_room(room: dict[str, int], tenant: str, n: int, tokens: int) -> None:
    for name, more in (("r", n), ("t", tokens), (f"r:{tenant}", n), (f"t:{tenant}", tokens)):
        room[name] = room.get(name, 0) + more


def _check_lists(state: State) -> None:
    for parent, group in state.groups.items():
        n, submitted, terminal = (int(group[name]) for name in ("n", "submitted", "terminal"))
        ids = [f"{parent}.{i}" for i in range(n)]
        ended = sum(rid in state.outcomes for rid in ids)
        assert ended == terminal <= n, f"S12 {parent}: {ended} of {terminal} have ended"
        assert (parent in state.outcomes) == (terminal == n), f"S12 {parent} and its children"
        for i, rid in enumerate(ids):
            is_known = rid in state.live or rid in state.outcomes
            assert is_known == (i < submitted), f"S12 child {rid}"
        if terminal < n and submitted < n:
            assert parent in state.sets["resv"], f"S12 {parent} would never end"


def check_again(name: str, first: list[Any], second: list[Any], once: State, twice: State) -> None:
    """S7: what a second run of the same call replies, and that it changes nothing."""
    if name in PROGRESS:
        return
    if name == "emit":
        # A place without text may be told twice; whether anybody reads along is then not said again.
        twice = replace(twice, outs=once.outs)
        first, second = (
            [part[0] == "LOST" for part in first],
            [part[0] == "LOST" for part in second],
        )
    assert once == twice, f"S7 {name} did more when it was run again"
    known = SECOND.get(name, {})
    expected = [known.get(word, word) if isinstance(word, str) else word for word in first]
    if name in ("drop", "end_missing"):
        # They tell how much there was to do, which is nothing by now.
        expected, second = [], []
    elif name in WORDY:
        expected, second = expected[:1], second[:1]
    assert second == expected, f"S7 {name} replied {first}, then {second}"
