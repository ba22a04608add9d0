"""The model of what one request's end means for those that wait for it, and how a request becomes ready."""

from __future__ import annotations

from msgspec.structs import replace

from shared.request import Record
from tests.protocol.clocked import Clocked

DEPENDENTS_MAX = 64


class Chaining(Clocked):
    def make_ready(self, rid: str, record: Record, kind: str = "", detail: str = "") -> None:
        """Into its lane, where its tenant's virtual time stands when it first gets there; or for later."""
        is_early = record.not_before_ms > self.now
        if is_early:
            self.save(rid, record, kind, detail, state="L")
            self.put("later", rid, record.not_before_ms)
            return
        tag = record.tag if record.tag >= 0 else self.next_tag(record)
        self.save(rid, record, kind, detail, state="Q", tag=tag)
        self.put(f"ready:{record.lane}", rid, tag)

    def next_tag(self, record: Record) -> float:
        tags, own = self.state.tags, f"f{record.lane}:{record.tenant}"
        tag = max(tags.get(f"v{record.lane}", 0.0), tags.get(own, 0.0))
        tags[own] = tag + record.cost_tokens / record.weight
        return tag

    def release_dependents(self, before: str, is_finished: bool) -> int:
        """Replies for how many ms the answer of `before` is still needed."""
        needed_ms = 0
        for rid in self.state.deps.pop(before, []):
            record = self.state.live[rid]
            awaited = without(record.depends_on, before)
            record = self.state.live[rid] = replace(record, depends_on=awaited)
            if record.state != "W":
                continue
            if not is_finished:
                self.save(rid, record, "dead", "dependency_failed", state="K")
                self.put("when", rid, self.now)
                continue
            needed_ms = max(needed_ms, record.deadline_ms - self.now)
            if not awaited:
                self.make_ready(rid, record, "ready", before)
                self.ring()
        return needed_ms

    def leave_predecessors(self, rid: str, record: Record) -> None:
        for before in record.depends_on:
            left = without(self.state.deps.pop(before, []), rid)
            if left:
                self.state.deps[before] = left


def without(items: list[str], item: str) -> list[str]:
    """Once less, where it is in there."""
    at = items.index(item) if item in items else len(items)
    return items[:at] + items[at + 1 :]
