"""Runs single scripts against the real server with an injected clock, and checks what must always hold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import redis

from shared import codec
from shared.queue.keys import Keys
from shared.queue.results import notices
from shared.queue.scripts import Call, Scripts
from shared.request import Outcome, Record
from shared.worker_info import WorkerInfo, WorkerState
from tests.protocol.invariants import check_state
from tests.protocol.reader import Reader

START_MS = 1_800_000_000_000
LEASE_MS = 15_000
TTL_MS = 86_400_000
LETTERS_MAX_BYTES = 1 << 20
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
            return self.client.execute_command(*call.loading_command)

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
        weight: float = 1,
        held: bool = False,
        depends: Sequence[str] = (),
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
            list(depends),
            "",
            "",
            not_before_ms,
            weight,
            int(held),
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
            letters_max_bytes=LETTERS_MAX_BYTES,
        )
        reply: list[bytes] = self.run(call)
        return reply

    def emit(
        self, rid: str, token: str, offset: int, text: str, wid: str = "w1", *, apis: Any = None
    ) -> list[str]:
        """One piece; its verdict and the apis that were not declared."""
        declared = self.apis if apis is None else apis
        (reply,) = self.run(self.scripts.emit(wid, declared, [(rid, token, offset, text)]))
        return [part.decode() for part in reply]

    def attach(self, rid: str, api: str, at: str = "0-0", n: int = 1000) -> list[Any]:
        """The verdict, and its part from there on: places and texts."""
        verdict, *pieces = self.run(self.scripts.attach(rid, api, at, n))
        told = [(place.decode(), fields[3].decode()) for place, fields in pieces]
        return [verdict.decode(), *told]

    def part(self, rid: str) -> dict[str, str]:
        """What is kept of its text: places to pieces."""
        entries = self.client.xrange(self.keys.part(rid))
        return {place.decode(): fields[b"d"].decode() for place, fields in entries}

    def chunks(self, api: str) -> list[tuple[str, str, str]]:
        """Id, place and text of what this API was told, in order."""
        entries = self._told(api)
        return [
            (fields[b"i"].decode(), fields[b"c"].decode(), fields[b"d"].decode())
            for fields in entries
            if b"c" in fields
        ]

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
            part_ttl_ms=60_000,
            letters_max_bytes=LETTERS_MAX_BYTES,
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
        return [fields[b"i"].decode() for fields in self._told(api) if b"r" in fields]

    def _told(self, api: str) -> list[dict[bytes, bytes]]:
        # Raw: a field may come several times in an entry, which the library makes a dict of.
        raw = self.client.eval(
            "return redis.call('XRANGE', KEYS[1], '-', '+')", 1, self.keys.out(api)
        )
        return [fields for _, flat in raw for fields in notices(flat)]

    def check(self) -> None:
        """What must hold of the shard as it is now."""
        check_state(Reader(self.client, self.keys).read())
