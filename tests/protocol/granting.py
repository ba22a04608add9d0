"""The model of how work goes to workers: claim and beat."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shared.request import Record
from tests.protocol.presence import Presence
from tests.protocol.state import READY

BOOST_MS = (30_000, 10_000, 0)
CLAIM_MAX, OVER_MAX = 1024, 256
QUARANTINE_MS = 30_000
ORPHAN_AFTER_MS = 2000
OVERTIME_MS = 2000


class Granting(Presence):
    def claim(
        self, wid: str, seq: int, n: int, max_bytes: int, lease_ms: int, is_idle: bool, slots: int
    ) -> list[Any]:
        last = self.state.claims.get(wid)
        if last and seq < last[0]:
            return ["STALE", int(self.is_paused), 0, 0, 0]
        if last and seq == last[0]:
            grants, solo = self._same_again(wid, last)
            return self._reply(wid, is_idle, int(self.is_paused), solo, grants)
        if self.is_paused:
            self.state.claims[wid] = [seq]
            return self._reply(wid, is_idle, 1, 0, [])
        n = min(n, CLAIM_MAX)
        round_ = Round(self, wid, seq, max_bytes, lease_ms)
        if is_idle:
            round_.take_suspects(min(n, max(1, slots // 4)))
        is_solo = bool(round_.taken)
        if not is_solo:
            round_.take_released(n)
            round_.take_lanes(n)
        self.state.claims[wid] = [seq, *round_.taken]
        reply = self._reply(wid, is_idle, 0, int(is_solo), round_.grants)
        if round_.taken and (len(round_.taken) >= n or is_solo) and reply[3] > 0:
            self.ring()
        return reply

    @property
    def is_paused(self) -> bool:
        return self.state.flags.get("paused") == "1"

    def _reply(
        self, wid: str, is_idle: bool, paused: int, solo: int, grants: list[Any]
    ) -> list[Any]:
        ready = {name: len(self.state.sets[name]) for name in READY}
        suspects = ready.pop("ready:S")
        if suspects and not is_idle and not self._is_told_of_suspects(wid):
            suspects = 0
        return ["OK", paused, suspects, sum(ready.values()), solo, *grants]

    def _is_told_of_suspects(self, wid: str) -> bool:
        """One busy worker at a time, so that not all empty themselves for them."""
        holder, _, until = self.state.flags.get("quarantine", "").rpartition(" ")
        if holder and holder != wid and int(until) > self.now:
            return False
        self.state.flags["quarantine"] = f"{wid} {self.now + QUARANTINE_MS}"
        return True

    def _same_again(self, wid: str, last: list[Any]) -> tuple[list[Any], int]:
        """What of the last claim is still the worker's: its grants once more, as they were."""
        grants, solo = [], 0
        for rid in last[1:]:
            record = self.state.live.get(rid)
            if record and is_held(record, wid) and record.token.startswith(f"{last[0]}-"):
                solo = solo or int(record.crashes > 0)
                if rid in self.state.entries:
                    grants.append(self.grant(rid, record))
        return grants, solo

    def grant(self, rid: str, record: Record) -> list[Any]:
        left_ms = record.deadline_ms - self.now
        counts = [record.grants, record.crashes, record.attempts]
        return [rid, record.token, left_ms, *counts, ",".join(record.apis), self.state.entries[rid]]

    def is_over(self, record: Record) -> bool:
        return min(record.deadline_ms, record.queue_until_ms) <= self.now

    def beat(
        self,
        wid: str,
        lease_ms: int,
        seq_seen: int,
        info: bytes,
        held: Mapping[str, tuple[str, bool]],
    ) -> list[Any]:
        state, now, lost = self.state, self.now, []
        for rid, (token, is_started) in held.items():
            record = state.live.get(rid)
            if not record or not is_held(record, wid, token):
                lost.append(rid)
                continue
            if self.is_abandoned(record):
                self.take_out(["lease"], rid)
                self.abandon(rid, record)
                lost.append(rid)
                continue
            self.put("lease", rid, now + lease_ms)
            if is_started and record.started_ms == 0:
                self.save(rid, record, "started", wid, started_ms=now)
        state.infos[wid], state.beats[wid] = info, now
        drains = int(f"drain:{wid}" in state.flags)
        return [now, int(self.is_paused), drains, lost, self._orphans(wid, seq_seen, held)]

    def _orphans(self, wid: str, seq_seen: int, held: Mapping[str, Any]) -> list[str]:
        """Granted by the last claim, whose reply the worker has seen, and yet not held."""
        seq, *taken = self.state.claims.get(wid, [seq_seen + 1])
        orphans = []
        for rid in taken if seq <= seq_seen else []:
            record = self.state.live.get(rid)
            if not record or not is_held(record, wid) or held.get(rid, ("",))[0] == record.token:
                continue
            is_old = record.claimed_ms < self.now - ORPHAN_AFTER_MS
            if is_old and record.token.startswith(f"{seq}-"):
                orphans += [rid, record.token]
        return orphans


class Walk:
    """One ready set from its head on; `head` is the next that may run."""

    def __init__(self, round_: Round, name: str) -> None:
        self.round, self.name = round_, name
        self.ids = round_.model.first(name)

    def head(self) -> Record | None:
        """What is over stays for the sweep; a claim looks at no more than 256 of those."""
        model = self.round.model
        while self.ids and self.round.n_over < OVER_MAX:
            record = model.state.live[self.ids[0]]
            if not model.is_over(record):
                return record
            self.round.n_over += 1
            self.ids.pop(0)
        return None

    def take(self) -> bool:
        """The head; False once the bytes are used up."""
        rid = self.ids[0]
        is_taken = self.round.take(rid, self.round.model.state.live[rid], self.name)
        if is_taken:
            self.ids.pop(0)
        return is_taken


class Round:
    """One claim: what it has taken so far, and what it may still take."""

    def __init__(self, model: Granting, wid: str, seq: int, max_bytes: int, lease_ms: int) -> None:
        self.model, self.wid, self.seq = model, wid, seq
        self.bytes_left, self.lease_ms = max_bytes, lease_ms
        self.n_over = self.fence = 0
        self.taken: list[str] = []
        self.grants: list[Any] = []

    def take_suspects(self, most: int) -> None:
        """With nothing beside them: after one crash in groups, after two alone."""
        walk = Walk(self, "ready:S")
        while len(self.taken) < most and (record := walk.head()):
            is_alone = record.crashes >= 2
            if (is_alone and self.taken) or not walk.take() or (is_alone and self.taken):
                return

    def take_released(self, n: int) -> None:
        walk = Walk(self, "ready:R")
        while len(self.taken) < n and walk.head() and walk.take():
            pass

    def take_lanes(self, n: int) -> None:
        """The lanes' heads by submit time less boost; inside a lane by tag, which virtual time follows."""
        tags, walks = self.model.state.tags, [Walk(self, name) for name in READY[:3]]
        while len(self.taken) < n:
            heads = [(lane, head) for lane in range(3) if (head := walks[lane].head())]
            if not heads:
                return
            lane, record = min(heads, key=lambda head: head[1].submitted_ms - BOOST_MS[head[0]])
            if not walks[lane].take():
                return
            if record.tag > tags.get(f"v{lane}", 0.0):
                tags[f"v{lane}"] = record.tag

    def take(self, rid: str, record: Record, name: str) -> bool:
        """False once the bytes are used up; the first is granted whatever its size."""
        model, now = self.model, self.model.now
        if model.is_abandoned(record):
            model.take_out([name], rid)
            model.abandon(rid, record)
            self.n_over += 1
            return True
        payload = model.state.entries.get(rid)
        if payload is None:
            model.take_out([name], rid)
            model.save(rid, record, "dead", "payload_lost", state="K")
            model.put("when", rid, now)
            self.n_over += 1
            return True
        if len(payload) > self.bytes_left and self.taken:
            return False
        self.bytes_left -= len(payload)
        model.take_out([name], rid)
        self.fence = self.fence or model.count("fence")
        record = model.save(
            rid,
            record,
            "claimed",
            self.wid,
            state="R",
            worker=self.wid,
            started_ms=0,
            claimed_ms=now,
            token=f"{self.seq}-{self.fence}",
            grants=record.grants + 1,
        )
        model.put("lease", rid, now + self.lease_ms)
        model.put("when", rid, record.deadline_ms + OVERTIME_MS)
        self.taken.append(rid)
        self.grants.append(model.grant(rid, record))
        return True


def is_held(record: Record, wid: str, token: str | None = None) -> bool:
    """Whether the request runs, at this worker, and (where it is given) under this token."""
    is_his = record.state == "R" and record.worker == wid
    return is_his and (token is None or record.token == token)
