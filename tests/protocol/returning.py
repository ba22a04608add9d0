"""The model of the ways back from a worker: nack, reap, and promote for what is tried again later."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from shared.request import Record
from tests.protocol.chaining import Chaining
from tests.protocol.granting import is_held

RETRY_MAX_MS = 60_000


class Returning(Chaining):
    def nack(
        self,
        wid: str,
        how: str,
        cause: str,
        held: Sequence[tuple[str, str]],
        *,
        max_attempts: int,
        max_crashes: int,
        delay_ms: int,
    ) -> list[str]:
        reply = []
        for rid, token in held:
            record = self.state.live.get(rid)
            if not record or not is_held(record, wid, token):
                reply.append("LOST")
                continue
            record = self.save(rid, record, worker="", token="")
            if how == "release":
                reply.append(self._released(rid, record, "released", cause))
            elif how == "retry":
                reply.append(self._retried(rid, record, cause, max_attempts, delay_ms))
            else:
                reply.append(self._crashed(rid, record, cause, max_crashes))
        self.ring()
        return reply

    def reap(self, n: int, max_crashes: int, max_idle_grants: int) -> list[Any]:
        """Owner and token stay, so that a late finish before the next claim still counts."""
        state, back = self.state, []
        if int(state.flags.get("grace", 0)) > self.now:
            return [0, 0, []]
        due = self.first("lease", n, self.now - 1)
        for rid in due:
            record = state.live[rid]
            cause = f"lease lost by {record.worker}"
            if record.started_ms > 0 or record.grants >= max_idle_grants:
                if self._crashed(rid, record, cause, max_crashes) == "DEAD":
                    continue
            else:
                self._released(rid, record, "reclaimed", cause)
            back.append(rid)
        if due:
            self.ring()
        return [len(due), int(len(due) == n), back]

    def promote(self, n: int) -> list[int]:
        due = self.first("later", n, self.now)
        for rid in due:
            record = self.state.live[rid]
            self.take_out(["later"], rid)
            if record.crashes:
                self.save(rid, record, "promoted", state="Q")
                self.put("ready:S", rid, suspect_rank(record))
            else:
                self.make_ready(rid, record, "promoted")
        if due:
            self.ring()
        return [len(due), int(len(due) == n)]

    def _released(self, rid: str, record: Record, kind: str, cause: str) -> str:
        self._leave(rid, record)
        self.save(rid, record, kind, cause, state="Q", queue_until_ms=record.deadline_ms)
        self._put_back(rid, record)
        self.count(kind)
        return "OK"

    def _retried(
        self, rid: str, record: Record, cause: str, max_attempts: int, delay_ms: int
    ) -> str:
        attempts = record.attempts + 1
        if attempts >= max_attempts:
            record = self.save(rid, record, "failed", cause, attempts=attempts)
            return self._killed(rid, record)
        self._leave(rid, record)
        until = record.deadline_ms
        self.save(rid, record, "retry", cause, state="L", attempts=attempts, queue_until_ms=until)
        self.put("later", rid, self.now + min(delay_ms * 2 ** (attempts - 1), RETRY_MAX_MS))
        return "OK"

    def _crashed(self, rid: str, record: Record, cause: str, max_crashes: int) -> str:
        crashes = record.crashes + 1
        self.count("crashes")
        if crashes > max_crashes:
            record = self.save(rid, record, "crash", cause, crashes=crashes)
            return self._killed(rid, record)
        self._leave(rid, record)
        until = record.deadline_ms
        record = self.save(
            rid, record, "suspect", cause, state="Q", crashes=crashes, queue_until_ms=until
        )
        self._put_back(rid, record)
        return "OK"

    def _put_back(self, rid: str, record: Record) -> None:
        """A suspect stays one until it has ended, whichever way it comes back."""
        if record.crashes:
            self.put("ready:S", rid, suspect_rank(record))
        else:
            self.put("ready:R", rid, record.submitted_ms)

    def _leave(self, rid: str, record: Record) -> None:
        """It has been served once: from now on only its deadline ends it, not its time in the queue."""
        self.take_out(["lease"], rid)
        self.put("when", rid, record.deadline_ms)

    def _killed(self, rid: str, record: Record) -> str:
        """Not yet an end: the sweep offers it until `end` has run."""
        self.save(rid, record, "dead", "attempts_exhausted", state="K")
        self.take_out(["lease"], rid)
        self.put("when", rid, self.now)
        self.count("dead")
        return "DEAD"


def suspect_rank(record: Record) -> float:
    """Fewer crashes first, then by submit time."""
    return record.crashes * 1e13 + record.submitted_ms
