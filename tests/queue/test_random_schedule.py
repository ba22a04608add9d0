"""A seeded random schedule of every operation, replies lost at random, invariants after each step."""

from __future__ import annotations

import random

import pytest

from shared.request import Record
from tests.queue.harness import LEASE_MS, TTL_MS, Shard

STEPS = 120
LOST_REPLY = 0.15
TENANTS = ("anonymous", "other")


class Schedule:
    """Draws operations; `handles` are all grants ever seen, dead ones too."""

    def __init__(self, shard: Shard, seed: int) -> None:
        self.shard = shard
        self.random = random.Random(seed)
        self.rids: list[str] = []
        self.handles: list[tuple[str, str, str]] = []
        self.finished: dict[str, str] = {}

    def step(self) -> None:
        name = self.random.choice(
            ("submit",) * 5
            + ("claim",) * 6
            + ("finish",) * 5
            + (
                "beat",
                "beat",
                "beat",
                "nack",
                "reap",
                "advance",
                "advance",
                "jump",
                "cancel",
                "sweep",
            )
            + ("resubmit", "promote", "flush", "list")
        )
        getattr(self, name)()
        self.remember()
        self.shard.check()

    def twice(self) -> int:
        return 2 if self.random.random() < LOST_REPLY else 1

    def remember(self) -> None:
        """Once ended, an outcome never changes and is never granted again."""
        for rid in self.rids:
            if rid not in self.shard.ended:
                raw = self.shard.client.get(self.shard.keys.outcome(rid))
                if raw:
                    self.shard.ended[rid] = raw

    def submit(self) -> None:
        rid = f"q.0-{len(self.rids):04d}"
        self.rids.append(rid)
        lane, tenant = self.random.randrange(3), self.random.choice(TENANTS)
        timeout = self.random.choice((3000, 40_000, 600_000))
        for n in range(self.twice()):
            reply = self.shard.submit(rid, lane=lane, tenant=tenant, timeout_ms=timeout, api="api")
            assert reply[0] == (b"DUP" if n else b"OK")

    def resubmit(self) -> None:
        if self.rids:
            assert self.shard.submit(self.random.choice(self.rids))[0] in (
                b"DUP",
                b"DONE",
                b"MISMATCH",
            )

    def list(self) -> None:
        parent, n = f"q.0-list{len(self.rids):04d}", self.random.randint(1, 5)
        scripts = self.shard.scripts
        meta = [1, "anonymous", 0, 40_000, 40_000, "api", "{}", "", [], "", "", 0]
        self.shard.run(scripts.reserve(parent, n, n, "anonymous", "d", "api", "{}", (0, 0, 0, 0)))
        sent = self.random.randint(0, n)
        if sent:
            for _ in range(self.twice()):
                self.shard.run(scripts.submit_many(parent, 0, meta, [(b"p", 1, "{}")] * sent))
        self.rids += [f"{parent}.{i}" for i in range(sent)] + [parent]

    def claim(self) -> None:
        wid, n = self.random.choice(("w1", "w2", "w3")), self.random.randint(1, 5)
        seq = self.shard.seqs.get(wid, 0) + 1
        idle = self.random.random() < 0.5
        first: list[bytes] = []
        for n_try in range(self.twice()):
            reply = self.shard.claim(wid, n, idle=idle, seq=seq)
            tokens = [grant[1] for grant in reply[5:]]
            assert n_try == 0 or tokens == first
            first = tokens
        for grant in reply[5:]:
            rid = grant[0].decode()
            assert rid not in self.shard.ended, "granted after its end"
            self.handles.append((wid, rid, grant[1].decode()))

    def handle(self) -> tuple[str, str, str] | None:
        return self.random.choice(self.handles[-40:]) if self.handles else None

    def finish(self) -> None:
        if (handle := self.handle()) is None:
            return
        wid, rid, token = handle
        before = self.shard.record(rid)
        parent = before.parent if before else ""
        for n in range(self.twice()):
            reply = self.shard.finish(rid, token, wid, parent=parent)
            if n == 0:
                assert (reply[0] == b"OK") == is_owner(before, wid, token)
                if reply[0] == b"OK":
                    self.finished[rid] = token
            elif self.finished.get(rid) == token:
                assert reply == [b"ALREADY"]

    def beat(self) -> None:
        if (handle := self.handle()) is not None:
            wid, rid, token = handle
            record = self.shard.record(rid)
            lost = self.shard.beat(wid, {rid: (token, True)})[3]
            owns = is_owner(record, wid, token) and record is not None and record.state == "R"
            assert (lost == []) == owns

    def nack(self) -> None:
        if (handle := self.handle()) is not None:
            how = self.random.choice(("release", "retry", "suspect"))
            for _ in range(self.twice()):
                self.shard.nack(how, handle[1], handle[2], handle[0])

    def reap(self) -> None:
        self.shard.reap(self.random.choice((1, 100)))

    def promote(self) -> None:
        self.shard.run(self.shard.scripts.promote(10))

    def advance(self) -> None:
        self.shard.advance(self.random.choice((1, 900, 5000, 16_000)))

    def jump(self) -> None:
        self.shard.scripts.at_ms += self.random.choice((-3_600_000, 30_000, 3_600_000))
        self.shard.run(self.shard.scripts.tick(LEASE_MS))

    def cancel(self) -> None:
        if self.rids:
            rid = self.random.choice(self.rids)
            for _ in range(self.twice()):
                self.shard.end(rid, "cancel")

    def sweep(self) -> None:
        due, parents = self.shard.run(self.shard.scripts.sweep(50))
        for rid in due:
            if self.shard.end(rid.decode(), "expire") == [b"NOTDUE"]:
                self.shard.end(rid.decode(), "dead")
        for parent in parents:
            self.end_missing(parent.decode())

    def end_missing(self, parent: str) -> None:
        key = self.shard.keys.group(parent)
        n, done = (int(x) for x in self.shard.client.hmget(key, "n", "submitted"))
        call = self.shard.scripts.end_missing(
            parent, "E", "submit_incomplete", done, n - done, TTL_MS, self.shard.apis
        )
        for _ in range(self.twice()):
            self.shard.run(call)

    def flush(self) -> None:
        self.shard.client.script_flush()

    def drain(self) -> None:
        """Under fair scheduling everything ends."""
        for _ in range(60):
            self.shard.advance(2000)
            self.sweep()
            self.shard.reap()
            self.promote()
            for grant in self.shard.claim("last", 50, idle=True)[5:]:
                rid = grant[0].decode()
                record = self.shard.record(rid)
                parent = record.parent if record else ""
                self.shard.finish(rid, grant[1].decode(), "last", parent=parent)
            if self.shard.client.hlen(self.shard.keys.fixed("live")) == 0:
                break
        self.shard.advance(40_000)
        self.sweep()
        self.remember()


def is_owner(record: Record | None, wid: str, token: str) -> bool:
    return (
        record is not None
        and record.worker == wid
        and record.token == token
        and record.state in ("R", "Q")
    )


@pytest.mark.parametrize("seed", range(60))
def test_nothing_is_lost_or_done_twice_under_a_random_schedule(shard: Shard, seed: int) -> None:
    shard.api("api")
    schedule = Schedule(shard, seed)
    for _ in range(STEPS):
        schedule.step()
    schedule.drain()
    shard.check()
    assert shard.client.hlen(shard.keys.fixed("live")) == 0
    missing = [rid for rid in schedule.rids if rid not in shard.ended]
    assert missing == []
    told = shard.notices("api")
    assert len(told) == len(set(told)), "told twice"
