"""The queue's figures and workers, parsed from one script's reply."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from shared import codec
from shared.errors import CodecError
from shared.request import Priority
from shared.worker_info import WorkerSeen


class QueueStats(msgspec.Struct, frozen=True, kw_only=True):
    """`depth` by priority name, redelivered and suspect requests apart; ages in seconds, rates per second."""

    now_ms: int
    depth: dict[str, int]
    redelivered: int
    suspects: int
    later: int
    running: int
    live: int
    tokens: int
    oldest_age_s: float
    paused: bool
    dead_letters: int
    counters: dict[str, int]
    workers: tuple[WorkerSeen, ...]
    drain_rate_per_s: float = 0.0

    @property
    def queued(self) -> int:
        return sum(self.depth.values()) + self.redelivered + self.suspects + self.later

    @property
    def ended(self) -> int:
        return sum(self.counters.get(name, 0) for name in ("finished", "cancelled", "error"))


def parse(reply: list[Any], lease_s: float) -> QueueStats:
    now_ms = int(reply[0])
    counters = {reply[8][i].decode(): int(reply[8][i + 1]) for i in range(0, len(reply[8]), 2)}
    oldest = int(reply[6])
    return QueueStats(
        now_ms=now_ms,
        depth={priority.name: int(reply[1][priority]) for priority in Priority},
        redelivered=int(reply[1][3]),
        suspects=int(reply[1][4]),
        later=int(reply[2]),
        running=int(reply[3]),
        live=int(reply[4]),
        tokens=int(reply[5]),
        oldest_age_s=max(0.0, (now_ms - oldest) / 1000) if oldest else 0.0,
        paused=bool(reply[7]),
        dead_letters=counters.get("dead", 0),
        counters=counters,
        workers=_in_order(_workers(reply[9], now_ms, lease_s)),
    )


def merge(parts: Sequence[QueueStats]) -> QueueStats:
    """Of several shards, added up; the clock is the first one's, and a worker is in all of them."""
    first = parts[0]
    if len(parts) == 1:
        return first
    counters: Counter[str] = Counter()
    depth: Counter[str] = Counter()
    workers: dict[str, WorkerSeen] = {}
    for part in parts:
        counters.update(part.counters)
        depth.update(part.depth)
        for worker in part.workers:
            known = workers.get(worker.name)
            if known is None or worker.age_s < known.age_s:
                workers[worker.name] = worker
    return QueueStats(
        now_ms=first.now_ms,
        depth=dict(depth),
        redelivered=sum(part.redelivered for part in parts),
        suspects=sum(part.suspects for part in parts),
        later=sum(part.later for part in parts),
        running=sum(part.running for part in parts),
        live=sum(part.live for part in parts),
        tokens=sum(part.tokens for part in parts),
        oldest_age_s=max(part.oldest_age_s for part in parts),
        paused=any(part.paused for part in parts),
        dead_letters=sum(part.dead_letters for part in parts),
        counters=dict(counters),
        workers=_in_order(workers.values()),
    )


def _in_order(workers: Iterable[WorkerSeen]) -> tuple[WorkerSeen, ...]:
    return tuple(sorted(workers, key=lambda worker: (not worker.is_live, worker.info.id)))


def _workers(flat: list[bytes], now_ms: int, lease_s: float) -> list[WorkerSeen]:
    fields = {flat[i].decode(): flat[i + 1] for i in range(0, len(flat), 2)}
    seen = []
    for name, raw in fields.items():
        if not name.startswith("i:"):
            continue
        age_s = max(0.0, (now_ms - int(fields.get("b:" + name[2:], b"0"))) / 1000)
        try:
            info = codec.decode_worker_info(raw)
            seen.append(WorkerSeen(info, age_s, age_s < lease_s, name[2:]))
        except CodecError:
            continue  # a worker of a later release: it is there, but cannot be shown by this one
    return seen
