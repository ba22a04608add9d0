"""The model of how requests come in: submit, and reserve with submit_many for lists."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from shared.request import Event, Record
from tests.protocol.chaining import DEPENDENTS_MAX, Chaining
from tests.protocol.letters import Letters
from tests.protocol.presence import Presence

RESERVATION_MS = 30_000


class Accepting(Chaining, Letters, Presence):
    def submit(
        self, rid: str, payload: bytes, meta: Sequence[Any], caps: Sequence[int]
    ) -> list[Any]:
        self.needs_memory()
        state, digest = self.state, meta[7]
        if rid in state.outcomes:
            return ["DONE" if state.outcomes[rid].digest == digest else "MISMATCH"]
        if rid in state.live:
            old = state.live[rid]
            if old.digest != digest:
                return ["MISMATCH"]
            return ["DUP", self.position(rid), old.events[0].at_ms]
        if rid in state.groups:
            return ["MISMATCH"]
        return self._accept_one(rid, payload, meta, caps)

    def requeue_letter(
        self, letter: str, rid: str, payload: bytes, meta: Sequence[Any], caps: Sequence[int]
    ) -> list[Any]:
        """A dead letter becomes a request again, under the id that is made from the letter's."""
        self.needs_memory()
        state = self.state
        if rid in state.outcomes:
            return ["DONE"]
        if rid in state.live:
            return ["DUP", self.position(rid), state.live[rid].events[0].at_ms]
        if letter not in self.letter_ids:
            return ["GONE"]
        reply = self._accept_one(rid, payload, meta, caps)
        if reply[0] == "OK":
            self.take_letter(self.letter_ids.index(letter))
            self.count("requeued")
        return reply

    def _accept_one(
        self, rid: str, payload: bytes, meta: Sequence[Any], caps: Sequence[int]
    ) -> list[Any]:
        tenant, before = meta[1], meta[8]
        for other in before:
            if reason := self._why_not_after(other, tenant):
                return [reason, other]
        cap, n_live = self.room_taken(tenant, 1, meta[2], list(caps))
        if cap:
            return ["FULL", cap, n_live]
        self.accept(rid, payload, meta, "")
        self.count("submitted")
        self.ring()
        return ["OK", self.position(rid), self.at_ms]

    def _why_not_after(self, other: str, tenant: str) -> str | None:
        state = self.state
        if other in state.live:
            if state.live[other].tenant != tenant:
                return "UNKNOWN"
            return "CROWDED" if len(state.deps.get(other, ())) >= DEPENDENTS_MAX else None
        outcome = state.outcomes.get(other)
        if outcome is None or outcome.tenant != tenant or outcome.n_children:
            return "UNKNOWN"
        return "UNKNOWN" if outcome.state == "F" and other not in state.bodies else None

    def reserve(
        self,
        parent: str,
        n: int,
        tokens: int,
        tenant: str,
        digest: str,
        api: str,
        delivery: str,
        caps: Sequence[int],
    ) -> list[Any]:
        self.needs_memory()
        state = self.state
        if parent in state.outcomes:
            return ["DONE" if state.outcomes[parent].digest == digest else "MISMATCH"]
        if parent in state.live:
            return ["MISMATCH"]
        if parent in state.groups:
            old = state.groups[parent]
            return ["DUP", old["at"]] if old["digest"] == digest else ["MISMATCH"]
        cap, n_live = self.room_taken(tenant, n, tokens, list(caps))
        if cap:
            return ["FULL", cap, n_live]
        fields = {"n": n, "submitted": 0, "terminal": 0, "tokens": tokens, "digest": digest}
        fields |= {"tenant": tenant, "apis": api, "delivery": delivery}
        fields |= {"t0": self.now, "at": self.at_ms, "cancelled": 0}
        state.groups[parent] = {name: str(value) for name, value in fields.items()}
        self.put("resv", parent, self.now + RESERVATION_MS)
        self.count("lists")
        return ["OK", str(self.at_ms)]

    def submit_many(
        self,
        parent: str,
        start: int,
        meta: Sequence[Any],
        children: Sequence[tuple[bytes, int, str]],
    ) -> list[Any]:
        self.needs_memory()
        group, end = self.state.groups.get(parent), start + len(children)
        if group is None or group["cancelled"] == "1":
            return ["GONE"]
        done = int(group["submitted"])
        if done >= end:
            return ["DUP", done]
        if parent not in self.state.sets["resv"]:
            return ["GONE"]
        if done != start:
            return ["GAP", done]
        for i, (payload, tokens, delivery) in enumerate(children, start):
            child = [*meta[:2], tokens, *meta[3:6], delivery, *meta[7:]]
            self.accept(f"{parent}.{i}", payload, child, parent)
        left = int(group["tokens"]) - sum(tokens for _, tokens, _ in children)
        group.update(submitted=str(end), tokens=str(left))
        self.count("submitted", len(children))
        if end == int(group["n"]):
            self.take_out(["resv"], parent)
        else:
            self.put("resv", parent, self.now + RESERVATION_MS)
        self.ring()
        return ["OK", end]

    def position(self, rid: str) -> int:
        """How many are certain to be claimed before it; -1 for one that is not queued."""
        record, sets = self.state.live[rid], self.state.sets
        if record.state != "Q":
            return -1
        lower = (f"ready:{lane}" for lane in range(record.lane))
        own = self.first(f"ready:{record.lane}")
        ahead = sum(len(sets[name]) for name in ("ready:R", "ready:S", *lower))
        return ahead + (own.index(rid) if rid in own else 0)

    def accept(self, rid: str, payload: bytes, meta: Sequence[Any], parent: str) -> None:
        """The entry, the record and its places."""
        lane, tenant, tokens, timeout_ms, queue_ms, api, delivery, digest = meta[:8]
        before, webhook, traceparent, not_before_ms, weight, held = meta[8:14]
        state, now = self.state, self.now
        state.entries[rid] = payload
        record = Record(
            v=1,
            state="W",
            entry_id=rid,
            lane=lane,
            tenant=tenant,
            cost_tokens=tokens,
            submitted_ms=now,
            deadline_ms=now + timeout_ms,
            queue_until_ms=now + queue_ms,
            worker="",
            token="",
            started_ms=0,
            grants=0,
            crashes=0,
            attempts=0,
            apis=[api] if api else [],
            delivery_json=delivery,
            digest=digest,
            parent=parent,
            depends_on=[],
            webhook=webhook,
            events=[Event(self.at_ms, "submitted", "")],
            traceparent=traceparent,
            claimed_ms=0,
            tag=-1,
            held=held,
            not_before_ms=now + not_before_ms if not_before_ms > 0 else 0,
            weight=weight,
        )
        self.put("when", rid, self.due_at(record))
        if any(x in state.outcomes and state.outcomes[x].state != "F" for x in before):
            self.save(rid, record, "dead", "dependency_failed", state="K")
            self.put("when", rid, now)
            return
        awaited = [x for x in before if x in state.live]
        for x in awaited:
            state.deps.setdefault(x, []).append(rid)
        for x in before:
            for key, kept in ((f"res:{x}", state.outcomes), (f"body:{x}", state.bodies)):
                if x in kept:
                    self.lives[key] = max(self.lives.get(key, 0), timeout_ms)
        if awaited:
            self.save(rid, record, "waits", str(len(awaited)), depends_on=awaited)
        else:
            self.make_ready(rid, record)
