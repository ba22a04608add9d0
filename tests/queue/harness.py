"""Runs single scripts against the real server with an injected clock, and checks what must always hold."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import redis

from shared import codec
from shared.queue.keys import Keys
from shared.queue.scripts import Call, Scripts
from shared.request import Outcome, Record
from shared.worker_info import WorkerInfo, WorkerState

START_MS = 1_800_000_000_000
LEASE_MS = 15_000
TTL_MS = 86_400_000
INFO = codec.encode(WorkerInfo(id="w", state=WorkerState.READY))
NO_CAPS = (0, 0, 0, 0)


class Shard:
    """One queue on the real server. `advance` moves the injected clock; every call may be repeated."""

    def __init__(self, client: redis.Redis, queue: str) -> None:
        self.client: Any = client
        self.keys = Keys(queue)
        self.scripts = Scripts(self.keys, START_MS)
        self.seqs: dict[str, int] = {}
        self.apis: list[str] = []
        self.ended: dict[str, bytes] = {}

    @property
    def now_ms(self) -> int:
        return self.scripts.at_ms

    def advance(self, ms: int) -> None:
        """A second at a time with a tick each, as the housekeeper does."""
        while ms > 0:
            step = min(ms, 1000)
            self.scripts.at_ms += step
            ms -= step
            self.run(self.scripts.tick(LEASE_MS))

    def run(self, call: Call) -> Any:
        try:
            return self.client.execute_command(*call.command)
        except redis.exceptions.NoScriptError:
            self.client.execute_command(*call.load_command)
            return self.client.execute_command(*call.command)

    def api(self, name: str) -> str:
        """An API process with a result stream."""
        self.run(self.scripts.tick(LEASE_MS, name))
        self.apis.append(name)
        return name

    def submit(
        self,
        rid: str,
        *,
        lane: int = 1,
        tenant: str = "anonymous",
        tokens: int = 10,
        timeout_ms: int = 600_000,
        queue_timeout_ms: int = 600_000,
        api: str = "",
        digest: str = "d",
        payload: bytes = b"payload",
        caps: tuple[int, int, int, int] = NO_CAPS,
        not_before_ms: int = 0,
    ) -> list[Any]:
        meta = [
            lane,
            tenant,
            tokens,
            timeout_ms,
            queue_timeout_ms,
            api,
            "{}",
            digest,
            [],
            "",
            "",
            not_before_ms,
        ]
        reply: list[Any] = self.run(self.scripts.submit(rid, payload, meta, caps))
        return reply

    def claim(
        self,
        wid: str = "w1",
        n: int = 1,
        *,
        idle: bool = True,
        seq: int | None = None,
        slots: int = 8,
        max_bytes: int = 1 << 22,
    ) -> list[Any]:
        if seq is None:
            seq = self.seqs.get(wid, 0) + 1
        self.seqs[wid] = max(seq, self.seqs.get(wid, 0))
        call = self.scripts.claim(wid, seq, n, max_bytes, LEASE_MS, idle, slots)
        reply: list[Any] = self.run(call)
        return reply

    def grant(self, wid: str = "w1", **options: Any) -> tuple[str, str]:
        """Claim one and return its id and token."""
        grants = self.claim(wid, 1, **options)[5:]
        assert len(grants) == 1
        return grants[0][0].decode(), grants[0][1].decode()

    def beat(
        self, wid: str, held: Mapping[str, tuple[str, bool]], *, seq_seen: int | None = None
    ) -> list[Any]:
        seen = self.seqs.get(wid, 0) if seq_seen is None else seq_seen
        reply: list[Any] = self.run(self.scripts.beat(wid, LEASE_MS, seen, INFO, held))
        return reply

    def start(self, rid: str, token: str, wid: str = "w1") -> None:
        assert self.beat(wid, {rid: (token, True)})[3] == []

    def finish(
        self,
        rid: str,
        token: str,
        wid: str = "w1",
        *,
        state: str = "F",
        body: bytes | None = b"\x81\xa4text\xa2hi",
        code: str = "",
        parent: str = "",
        apis: list[str] | None = None,
        inline_max: int = 1024,
    ) -> list[bytes]:
        call = self.scripts.finish(
            rid,
            wid,
            token,
            state,
            code,
            "",
            "{}",
            body,
            TTL_MS,
            60_000,
            inline_max,
            self.apis if apis is None else apis,
            parent,
        )
        reply: list[bytes] = self.run(call)
        return reply

    def end(
        self, rid: str, how: str, *, wid: str | None = None, apis: list[str] | None = None
    ) -> list[bytes]:
        record = self.record(rid)
        owner = (record.worker if record else "") if wid is None else wid
        parent = record.parent if record else ""
        call = self.scripts.end(
            rid,
            how,
            "cancelled" if how == "cancel" else "",
            "",
            owner,
            TTL_MS,
            self.apis if apis is None else apis,
            parent,
        )
        reply: list[bytes] = self.run(call)
        return reply

    def nack(
        self,
        how: str,
        rid: str,
        token: str,
        wid: str = "w1",
        *,
        max_attempts: int = 3,
        max_crashes: int = 2,
    ) -> list[bytes]:
        call = self.scripts.nack(
            wid,
            how,
            "why",
            [(rid, token)],
            max_attempts=max_attempts,
            max_crashes=max_crashes,
            delay_ms=500,
        )
        reply: list[bytes] = self.run(call)
        return reply

    def reap(self, n: int = 100) -> list[int]:
        moved, more, _ = self.run(self.scripts.reap(n, 2, 5))
        return [moved, more]

    def record(self, rid: str) -> Record | None:
        raw = self.client.hget(self.keys.fixed("live"), rid)
        return codec.decode_record(raw) if raw else None

    def outcome(self, rid: str) -> Outcome | None:
        raw = self.client.get(self.keys.outcome(rid))
        return codec.decode_outcome(raw) if raw else None

    def state(self, rid: str) -> str | None:
        record, outcome = self.record(rid), self.outcome(rid)
        assert record is None or outcome is None, "live and ended at once"
        return record.state if record else outcome.state if outcome else None

    def notices(self, api: str) -> list[str]:
        """Ids that this API was told of, in order."""
        entries = self.client.xrange(self.keys.out(api))
        return [fields[b"i"].decode() for _, fields in entries if b"r" in fields]

    def check(self) -> None:
        """The invariants of the protocol that a snapshot can show (S2 to S6, S8, S10)."""
        c, k = self.client, self.keys
        live = {
            rid.decode(): codec.decode_record(raw)
            for rid, raw in c.hgetall(k.fixed("live")).items()
        }
        entries = {fields[b"i"].decode(): eid.decode() for eid, fields in c.xrange(k.fixed("in"))}
        assert entries == {rid: record.entry_id for rid, record in live.items()}
        sets = {
            name: {rid.decode() for rid in c.zrange(k.fixed(name), 0, -1)}
            for name in (
                "ready:0",
                "ready:1",
                "ready:2",
                "ready:R",
                "ready:S",
                "later",
                "lease",
                "when",
            )
        }
        assert sets["when"] == set(live)
        for rid, record in live.items():
            places = [name for name, ids in sets.items() if name != "when" and rid in ids]
            if record.state == "Q":
                assert len(places) == 1, (rid, places)
                assert places[0].startswith("ready:"), places
            else:
                assert places == {"R": ["lease"], "L": ["later"], "K": [], "W": []}[record.state]
            assert self.outcome(rid) is None
        placed = set().union(*(ids for name, ids in sets.items() if name != "when"))
        assert placed <= set(live)
        self._check_counts(live)
        for rid, first in self.ended.items():
            assert c.get(k.outcome(rid)) == first, "an outcome changed"

    def _check_counts(self, live: Mapping[str, Record]) -> None:
        c, k = self.client, self.keys
        counts = {name.decode(): int(value) for name, value in c.hgetall(k.fixed("ten")).items()}
        waiting_n = waiting_tokens = 0
        for parent in c.zrange(k.fixed("resv"), 0, -1):
            group = c.hmget(k.group(parent.decode()), "n", "submitted", "tokens")
            waiting_n += int(group[0]) - int(group[1])
            waiting_tokens += int(group[2])
        assert counts.get("r", 0) == len(live) + waiting_n
        assert counts.get("t", 0) == sum(r.cost_tokens for r in live.values()) + waiting_tokens
        if not live and not waiting_n:
            for name in (
                "in",
                "ready:0",
                "ready:1",
                "ready:2",
                "ready:R",
                "ready:S",
                "later",
                "lease",
            ):
                assert c.exists(k.fixed(name)) == 0 or name == "in"
            assert c.xlen(k.fixed("in")) == 0
