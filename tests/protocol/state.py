"""One shard's whole state as plain Python: what the model computes, and what is read of the real server to compare.

Knows no rule. What the server draws by itself has a common form: a record's `entry_id` is its own id while its stream
entry is there, else empty; dead letters are in their order.
"""

from __future__ import annotations

from copy import copy as shallow
from typing import Any

import msgspec

from shared.request import Outcome, Record

READY = ("ready:0", "ready:1", "ready:2", "ready:R", "ready:S")
SETS = (*READY, "later", "lease", "when", "bell", "resv", "recent")
# The fields of a state whose values can change too.
NESTED = ("sets", "ctl", "deps", "claims", "groups", "parts", "outs")


class Entry(msgspec.Struct, frozen=True):
    """What stands in a front door's stream: the notice of an end, or a chunk of a text."""

    rid: str
    outcome: Outcome | None = None
    body: bytes | None = None
    place: str = ""
    token: str = ""
    data: str = ""


class Letter(msgspec.Struct, frozen=True):
    """A dead letter: the request with its payload, kept to be sent again."""

    rid: str
    payload: bytes
    outcome: Outcome


def size_of(letter: Letter) -> int:
    """Bytes; an outcome is as long as the scripts pack it."""
    return len(letter.rid) + len(letter.payload) + len(msgspec.msgpack.encode(letter.outcome))


class State(msgspec.Struct):
    """Everything that a shard's keys hold."""

    live: dict[str, Record] = {}
    entries: dict[str, bytes] = {}
    sets: dict[str, dict[str, float]] = msgspec.field(default_factory=lambda: {n: {} for n in SETS})
    ctl: dict[str, dict[str, float]] = {}
    deps: dict[str, list[str]] = {}
    tags: dict[str, float] = {}
    room: dict[str, int] = {}
    stat: dict[str, int] = {}
    flags: dict[str, str] = {}
    apis: dict[str, int] = {}
    beats: dict[str, int] = {}
    claims: dict[str, list[Any]] = {}
    infos: dict[str, bytes] = {}
    groups: dict[str, dict[str, str]] = {}
    outcomes: dict[str, Outcome] = {}
    bodies: dict[str, bytes] = {}
    parts: dict[str, dict[tuple[int, int], tuple[str, str]]] = {}
    outs: dict[str, list[Entry]] = {}
    letters: list[Letter] = []

    def copy(self) -> State:
        """Records, outcomes and entries are frozen, so only what holds them is copied."""
        new = shallow(self)
        for name in FLAT:
            setattr(new, name, getattr(self, name).copy())
        for name in NESTED:
            held = getattr(self, name)
            setattr(new, name, {key: value.copy() for key, value in held.items()} if held else {})
        return new


FLAT = tuple(name for name in State.__struct_fields__ if name not in NESTED)


def place_of(entry_id: str) -> tuple[int, int]:
    """`<grants>-<offset + 1>` as numbers: the name of a piece in a part."""
    grants, _, at = entry_id.partition("-")
    return int(grants), int(at)
