"""The model of how requests end: finish, end, end_missing, and settle for what a run had used up by then."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from shared.request import Event, Outcome, Record
from tests.protocol.chaining import Chaining
from tests.protocol.granting import OVERTIME_MS
from tests.protocol.letters import Letters
from tests.protocol.state import READY, Entry

STAT = {"F": "finished", "C": "cancelled", "E": "error"}
DEAD = {
    "attempts_exhausted": "its workers died or failed too often",
    "bad_record": "its record cannot be read",
    "client_gone": "its client left",
    "dependency_failed": "a request that it depends on did not finish",
    "payload_lost": "its entry was removed from the stream",
}
PLACES = {"R": ("lease",), "L": ("later",), "Q": READY}


class End(msgspec.Struct, frozen=True):
    """How a request ends; lives in milliseconds."""

    state: str
    code: str
    message: str
    report: str
    body: bytes | None
    ttl_ms: int
    body_ttl_ms: int
    inline_max: int


class Ending(Chaining, Letters):
    def finish(
        self,
        rid: str,
        wid: str,
        token: str,
        state: str,
        code: str,
        message: str,
        report: str,
        body: bytes | None,
        ttl_ms: int,
        body_ttl_ms: int,
        inline_max: int,
        apis: Sequence[str],
        parent: str,
        *,
        letters_max_bytes: int,
    ) -> list[str]:
        record = self.state.live.get(rid)
        if record is None:
            outcome = self.state.outcomes.get(rid)
            if outcome is None:
                return ["GONE"]
            is_own = (outcome.worker, outcome.token) == (wid, token) and outcome.state in ("F", "E")
            # What was ended from outside has no report.
            return ["ALREADY" if is_own and outcome.report_json else "LOST"]
        if record.worker != wid or record.token != token or record.state == "K":
            return ["LOST"]
        was = record.state
        if was != "R":
            self.take_out(PLACES[was], rid)
            record = self.save(rid, record, "late", wid, state="R")
        end = End(state, code, message, report, body, ttl_ms, body_ttl_ms, inline_max)
        payload = self.state.entries.get(rid) if code == "bad_record" else None
        missed = self._terminate(rid, record, end, apis)
        if payload is not None:
            self.keep_letter(rid, payload, self.state.outcomes[rid], letters_max_bytes)
        return ["OK", was, *missed]

    def end(
        self,
        rid: str,
        how: str,
        code: str,
        message: str,
        wid: str,
        ttl_ms: int,
        apis: Sequence[str],
        parent: str,
        *,
        part_ttl_ms: int,
        letters_max_bytes: int,
    ) -> list[str]:
        record = self.state.live.get(rid)
        if record is None:
            return ["GONE"]
        if record.worker != wid or (not record.parent and not set(record.apis) <= set(apis)):
            return ["KEYS"]
        was = record.state
        if how == "cancel":
            state = "C"
        elif how == "expire":
            over_at = min(record.deadline_ms, record.queue_until_ms)
            if was == "K" or self.now < (
                record.deadline_ms + OVERTIME_MS if was == "R" else over_at
            ):
                return ["NOTDUE"]
            state = "E"
            if was == "R":
                code, message = "deadline_exceeded", "the deadline passed while it ran"
            else:
                code, message = "expired", "it was still queued when its time was over"
        elif was != "K":
            return ["NOTDUE"]
        else:
            code = record.events[-1].detail
            state, message = "C" if code == "client_gone" else "E", DEAD[code]
        if was == "R":
            self.state.ctl.setdefault(wid, {})[rid] = self.now
        payload = self.state.entries.get(rid) if code == "attempts_exhausted" else None
        missed = self._terminate(
            rid, record, End(state, code, message, "", None, ttl_ms, part_ttl_ms, 0), apis
        )
        if payload is not None:
            self.keep_letter(rid, payload, self.state.outcomes[rid], letters_max_bytes)
        return ["OK", was, record.worker, *missed]

    def end_missing(
        self,
        parent: str,
        state: str,
        code: str,
        start: int,
        count: int,
        ttl_ms: int,
        apis: Sequence[str],
    ) -> list[Any]:
        """The children of a list that were never submitted."""
        group, resv = self.state.groups.get(parent), self.state.sets["resv"]
        if group is None:
            return ["GONE"]
        if state == "C":
            group["cancelled"] = "1"
        elif resv.get(parent, 0) > self.now:
            return ["NOTDUE"]
        n, done = int(group["n"]), int(group["submitted"])
        if done != start or start + count > n:
            return ["KEYS", done]
        missed: list[str] = []
        for i in range(start, start + count):
            self.state.outcomes[f"{parent}.{i}"] = self._of_list(
                group, state, code, message="it was never submitted", parent=parent
            )
            self.count("cancelled" if state == "C" else "error")
            group["submitted"] = str(i + 1)
            self.lives[f"res:{parent}.{i}"] = ttl_ms
            missed = self._count_child(parent, apis, ttl_ms)
        unused = 0
        if start + count == n:
            unused, group["tokens"] = int(group["tokens"]), "0"
        self.give_room(group["tenant"], count, unused)
        if state == "C" and parent not in self.state.outcomes:
            self.put("resv", parent, self.now + 5000)
        elif start + count == n:
            self.take_out(["resv"], parent)
        return ["OK", start + count, n, *missed]

    def settle(self, rid: str, wid: str, token: str, report: str, output_tokens: int) -> list[str]:
        outcome = self.state.outcomes.get(rid)
        if outcome is None:
            return ["GONE"]
        if (outcome.worker, outcome.token) != (wid, token):
            return ["LOST"]
        if outcome.report_json:
            return ["ALREADY"]
        self.state.outcomes[rid] = replace(outcome, report_json=report)
        self.count("settled_tokens", output_tokens)
        return ["OK"]

    def _terminate(self, rid: str, record: Record, end: End, apis: Sequence[str]) -> list[str]:
        """All that follows from an end, in one step. Replies the front doors that were not declared."""
        kept, lives = self.state, self.lives
        started_ms = record.started_ms or (record.claimed_ms if record.state == "R" else 0)
        record = self.save(rid, record, "ended", end.state)
        kept.outcomes[rid] = outcome = Outcome(
            v=1,
            state=end.state,
            code=end.code,
            message=end.message,
            worker=record.worker,
            token=record.token,
            attempts=record.attempts,
            crashes=record.crashes,
            submitted_ms=record.submitted_ms,
            started_ms=started_ms,
            ended_ms=self.now,
            digest=record.digest,
            tenant=record.tenant,
            parent=record.parent,
            delivery_json=record.delivery_json,
            report_json=end.report,
            events=record.events,
            grants=record.grants,
        )
        if rid in kept.parts:
            lives[f"part:{rid}"] = end.body_ttl_ms
        needed_ms = self.release_dependents(rid, end.state == "F")
        if end.body is not None:
            kept.bodies[rid] = end.body
            lives[f"body:{rid}"] = max(end.body_ttl_ms, needed_ms)
        lives[f"res:{rid}"] = max(end.ttl_ms, needed_ms)
        self.leave_predecessors(rid, record)
        self.take_out((*PLACES.get(record.state, ()), "when"), rid)
        del kept.live[rid]
        kept.entries.pop(rid, None)
        self.give_room(record.tenant, 1, record.cost_tokens)
        self.count(STAT[end.state])
        if end.code:
            self.count(f"code:{end.code}")
        if record.parent:
            return self._count_child(record.parent, apis, end.ttl_ms)
        self.put("recent", rid, self.now)
        return self._notice(rid, record.apis, apis, outcome, end.body, end.inline_max)

    def _of_list(
        self,
        group: dict[str, str],
        state: str,
        code: str,
        *,
        message: str = "",
        parent: str = "",
        delivery_json: str = "",
        n_children: int = 0,
    ) -> Outcome:
        """A list's own outcome, or that of a child which was never submitted: no worker had it."""
        return Outcome(
            v=1,
            state=state,
            code=code,
            message=message,
            worker="",
            token="",
            attempts=0,
            crashes=0,
            submitted_ms=int(group["t0"]),
            started_ms=0,
            ended_ms=self.now,
            digest=group["digest"],
            tenant=group["tenant"],
            parent=parent,
            delivery_json=delivery_json,
            report_json="",
            events=self._first_and_last(int(group["at"]), state),
            n_children=n_children,
        )

    def _count_child(self, parent: str, apis: Sequence[str], ttl_ms: int) -> list[str]:
        """At the last child's end the parent gets its own outcome and notice."""
        group = self.state.groups[parent]
        group["terminal"] = str(int(group["terminal"]) + 1)
        if int(group["terminal"]) < int(group["n"]):
            return []
        state = "C" if group["cancelled"] == "1" else "F"
        self.state.outcomes[parent] = self._of_list(
            group,
            state,
            "cancelled" if state == "C" else "",
            delivery_json=group["delivery"],
            n_children=int(group["n"]),
        )
        self.lives[f"res:{parent}"] = self.lives[f"grp:{parent}"] = ttl_ms
        self.take_out(["resv"], parent)
        self.put("recent", parent, self.now)
        own = [api for api in group["apis"].split(",") if api]
        return self._notice(parent, own, apis, self.state.outcomes[parent], None, 0)

    def _first_and_last(self, at_ms: int, state: str) -> list[Event]:
        return [Event(at_ms, "submitted", ""), Event(self.at_ms, "ended", state)]

    def _notice(
        self,
        rid: str,
        own: Sequence[str],
        declared: Sequence[str],
        outcome: Outcome,
        body: bytes | None,
        inline_max: int,
    ) -> list[str]:
        """One to each front door that is declared and has a stream; returns those that are not declared."""
        for api in own:
            if api in declared and api in self.state.outs:
                inline = body if fits(outcome, body, inline_max) else None
                self.state.outs[api].append(Entry(rid, outcome, inline))
        return [api for api in own if api not in declared]


def fits(outcome: Outcome, body: bytes | None, inline_max: int) -> bool:
    """Whether a notice carries the answer itself; packed as the scripts pack it."""
    return body is not None and len(msgspec.msgpack.encode(outcome)) + len(body) <= inline_max
