"""The model of what readers get: peek, attach, notify, emit for texts on their way, drop."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from shared.request import Record
from tests.protocol.ending import fits
from tests.protocol.granting import is_held
from tests.protocol.presence import Presence
from tests.protocol.state import Entry, place_of

APIS_MAX = 4
# Code points that a part holds, and bytes above which a reader is sent to the part.
PART_MAX, TOLD_MAX = 262_144, 1024


class Reading(Presence):
    def peek(self, rid: str) -> list[Any]:
        state, rest = self.state, [-1, self.at_ms]
        if rid in state.live:
            record = state.live[rid]
            return [self.now, "live", record, self._ahead(rid, record), self.at_ms]
        if rid in state.outcomes:
            return [self.now, "done", state.outcomes[rid], *rest]
        if rid in state.groups:
            return [self.now, "group", state.groups[rid], *rest]
        return [self.now, "none", "", *rest]

    def _ahead(self, rid: str, record: Record) -> int:
        """How many are ready before it; 0 for one that was given back, -1 for one that is not ready."""
        sets, own = self.state.sets, f"ready:{record.lane}"
        if record.state != "Q" or rid not in sets[own]:
            return 0 if record.state == "Q" else -1
        more = ("ready:R", "ready:S", *(f"ready:{lane}" for lane in range(record.lane)))
        return self.first(own).index(rid) + sum(len(sets[name]) for name in more)

    def attach(self, rid: str, api: str, at: str = "0-0", n: int = 0) -> list[Any]:
        """One more reader, and the part from the piece on that holds the place `at`; "" holds the line no more."""
        pieces = sorted(self.state.parts.get(rid, {}).items())
        from_ = max((place for place, _ in pieces if place <= place_of(at)), default=(0, 0))
        rest = [(place, piece) for place, piece in pieces if place >= from_][:n]
        return [
            "OK" if self._join(rid, api) else "GONE",
            *(
                [f"{grants}-{after}", ["t", token, "d", data]]
                for (grants, after), (token, data) in rest
            ),
        ]

    def _join(self, rid: str, api: str) -> bool:
        state = self.state
        if rid in state.live:
            record = state.live[rid]
            if api:
                state.live[rid] = replace(record, apis=joined(record.apis, api))
            elif record.held:
                state.live[rid] = record = replace(record, held=0)
                if record.state in "QLW":
                    self.put("when", rid, self.due_at(record))
        elif rid in state.groups:
            own = [name for name in state.groups[rid]["apis"].split(",") if name]
            if api:
                state.groups[rid]["apis"] = ",".join(joined(own, api))
        else:
            return False
        return True

    def emit(
        self, wid: str, apis: Sequence[str], pieces: Sequence[tuple[str, str, int, str]]
    ) -> list[list[str]]:
        self.needs_memory()
        return [self._emit_one(wid, apis, *piece) for piece in pieces]

    def _emit_one(
        self, wid: str, apis: Sequence[str], rid: str, token: str, offset: int, data: str
    ) -> list[str]:
        """Told to each reader and kept in the part, unless the part is as far already."""
        record = self.state.live.get(rid)
        if not record or not is_held(record, wid, token):
            return ["LOST"]
        kept = self.state.parts.get(rid, {})
        place = (record.grants, offset + 1)
        is_new = not data or not kept or place > max(kept)
        if data and is_new:
            oldest = (record.grants, max(0, offset - PART_MAX))
            kept = {at: piece for at, piece in kept.items() if at >= oldest}
            self.state.parts[rid] = kept | {place: (token, data)}
        there = [api for api in record.apis if api in apis and api in self.state.outs]
        is_long = len(data.encode()) > TOLD_MAX
        at, told = (offset + len(data), "") if is_long else (offset, data)
        for api in there if is_new else []:
            entry = Entry(rid, place=f"{record.grants}/{at}", token=token, data=told)
            self.state.outs[api].append(entry)
        missed = [api for api in record.apis if api not in apis]
        is_heard = bool(there) if is_new else any(api in apis for api in record.apis)
        return ["OK" if is_heard or missed else "NOBODY", *missed]

    def drop(self, rids: Sequence[str]) -> list[int]:
        n = 0
        for rid in rids:
            for name, held in (("body", self.state.bodies), ("part", self.state.parts)):
                n += int(rid in held)
                held.pop(rid, None)
                self.lives.pop(f"{name}:{rid}", None)
        return [n]

    def notify(self, rid: str, api: str, inline_max: int) -> list[str]:
        state = self.state
        if rid not in state.outcomes:
            return ["GONE"]
        outcome, body = state.outcomes[rid], state.bodies.get(rid)
        if api in state.outs:
            state.outs[api].append(
                Entry(rid, outcome, body if fits(outcome, body, inline_max) else None)
            )
        return ["OK"]


def joined(apis: list[str], api: str) -> list[str]:
    if api in apis:
        return apis
    return [*(apis[:1] + apis[2:] if len(apis) >= APIS_MAX else apis), api]
