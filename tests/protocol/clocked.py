"""What every script of the model starts from: the state, the queue clock, and the small moves that scripts share."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from msgspec.structs import replace

from shared.request import Event, Record
from tests.protocol.state import State

EVENTS_MAX = 16


class Refused(Exception):
    """A full broker does not run a script that needs memory."""


class Clocked:
    """`at_ms` is the server's clock, set before each call; `state` changes in place."""

    def __init__(self, state: State | None = None) -> None:
        self.state = state or State()
        self.at_ms = 0
        self.is_memory_full = False
        # How long outcomes, answers, parts and ended lists are kept from now on, by `res:<id>` and so on.
        self.lives: dict[str, int] = {}
        # What the server named the letters of `state.letters`, in their order.
        self.letter_ids: list[str] = []

    @property
    def now(self) -> int:
        """The queue clock: never backwards, and a jump of the server's clock is not passed on."""
        flags = self.state.flags
        clock, off = int(flags.get("clk", 0)), int(flags.get("off", 0))
        now = self.at_ms - off
        if clock > 0 and now - clock > 5000:
            now = clock + 1000
        return max(now, clock)

    def needs_memory(self) -> None:
        if self.is_memory_full:
            raise Refused

    def save(
        self, rid: str, record: Record, kind: str = "", detail: str = "", **changes: Any
    ) -> Record:
        """The record with its changes and one more event; the second oldest makes room."""
        events = record.events
        if kind:
            events = [*events[:1], *events[2:]] if len(events) >= EVENTS_MAX else events
            events = [*events, Event(self.at_ms, kind, detail)]
        record = replace(record, events=events, **changes)
        self.state.live[rid] = record
        return record

    def lose_entry(self, rid: str) -> None:
        """Somebody removes a stream entry by hand."""
        self.state.entries.pop(rid, None)
        self.state.live[rid] = replace(self.state.live[rid], entry_id="")

    def ring(self) -> None:
        self.state.sets["bell"]["w"] = self.now

    def count(self, counter: str, by: int = 1) -> int:
        self.state.stat[counter] = self.state.stat.get(counter, 0) + by
        return self.state.stat[counter]

    def put(self, name: str, rid: str, score: float) -> None:
        self.state.sets[name][rid] = score

    def take_out(self, names: Iterable[str], rid: str) -> None:
        for name in names:
            self.state.sets[name].pop(rid, None)

    def first(self, name: str, most: int | None = None, until: float | None = None) -> list[str]:
        """Ids by score, then by id; up to and with the score `until`."""
        pairs = sorted((score, rid) for rid, score in self.state.sets[name].items())
        return [rid for score, rid in pairs if until is None or score <= until][:most]

    def room_taken(
        self, tenant: str, n: int, tokens: int, caps: list[int]
    ) -> tuple[str | None, int]:
        """Takes room for n requests; the cap that this breaks, if any, and how many are live."""
        room = self.state.room
        names = ("requests", "tokens", "tenant_requests", "tenant_tokens")
        fields = ("r", "t", f"r:{tenant}", f"t:{tenant}")
        sums = [
            room.get(f, 0) + more for f, more in zip(fields, (n, tokens, n, tokens), strict=True)
        ]
        for name, total, cap in zip(names, sums, caps, strict=True):
            if 0 < cap < total:
                return name, room.get("r", 0)
        room.update(zip(fields, sums, strict=True))
        return None, room["r"]

    def give_room(self, tenant: str, n: int, tokens: int) -> None:
        room = self.state.room
        for field, less in (("r", n), ("t", tokens), (f"r:{tenant}", n), (f"t:{tenant}", tokens)):
            room[field] = room.get(field, 0) - less
        if room[f"r:{tenant}"] <= 0:
            del room[f"r:{tenant}"], room[f"t:{tenant}"]
