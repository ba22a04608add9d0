"""S9 by tokens: tenants that are busy in a lane take turns by what they ask for, each by its weight.

A lane is served by tags, so it is enough that these are right: each tenant's next tag is the last one and what it was
charged for that, or the lane's virtual time where that is later. Knows no model.
"""

from __future__ import annotations

from collections import defaultdict

from shared.request import Record
from tests.protocol.state import State

EXACT = 1e-6


class Turns:
    def __init__(self) -> None:
        self._tagged: set[str] = set()
        # By lane and tenant: where its next tag is. Of a tenant with nothing live that may be forgotten.
        self._next: dict[tuple[int, str], float] = {}
        self._may_be_forgotten: set[tuple[int, str]] = set()
        self._virtual: defaultdict[int, float] = defaultdict(float)

    def check(self, state: State) -> None:
        new = [(rid, r) for rid, r in state.live.items() if r.tag >= 0 and rid not in self._tagged]
        for rid, record in sorted(new, key=lambda one: one[1].tag):
            self._tagged.add(rid)
            self._charge(rid, record)
        for record in state.live.values():
            # A claim that comes upon one whose caller or entry has gone goes on from there, too.
            if record.state in "RK":
                self._virtual[record.lane] = max(self._virtual[record.lane], record.tag)
        busy = {record.tenant for record in state.live.values()}
        self._may_be_forgotten |= {key for key in self._next if key[1] not in busy}

    def _charge(self, rid: str, record: Record) -> None:
        own = record.lane, record.tenant
        at = self._next.get(own, 0.0)
        is_early = record.tag < at - EXACT and own not in self._may_be_forgotten
        assert not is_early, f"S9 {rid} is at {record.tag}, before its turn at {at}"
        latest = max(at, self._virtual[record.lane])
        assert record.tag <= latest + EXACT, f"S9 {rid} is at {record.tag}, after its turn at {at}"
        self._next[own] = record.tag + record.cost_tokens / record.weight
        self._may_be_forgotten.discard(own)
