"""The model of callers that hold the line: a request with `held` goes no further than its front doors are there."""

from __future__ import annotations

from shared.request import Record
from tests.protocol.clocked import Clocked

ABSENT_MS = 30_000


class Presence(Clocked):
    def abandoned_at(self, record: Record) -> int:
        """Unless one of its front doors ticks again; from the submit at the earliest."""
        ticks = [self.state.apis.get(api, 0) for api in record.apis]
        return max(record.submitted_ms, *ticks, 0) + ABSENT_MS

    def is_abandoned(self, record: Record) -> bool:
        return record.held == 1 and self.abandoned_at(record) <= self.now

    def abandon(self, rid: str, record: Record) -> None:
        """For the sweep to end as cancelled; whoever calls has taken it out of its set."""
        self.save(rid, record, "dead", "client_gone", state="K")
        self.put("when", rid, self.now)

    def due_at(self, record: Record) -> int:
        """When the sweep looks at a queued one: now and then while its caller may leave without a word."""
        due = min(record.deadline_ms, record.queue_until_ms)
        return min(due, self.abandoned_at(record)) if record.held == 1 else due
