"""What a worker tells about itself with every beat; read by the front door, `/workers` and `/info`."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

import msgspec


class WorkerState(StrEnum):
    STARTING = "starting"
    READY = "ready"
    BUSY = "busy"
    DRAINING = "draining"
    SETUP_FAILED = "setup_failed"
    STALLED = "stalled"

    @property
    def can_serve(self) -> bool:
        return self in (WorkerState.READY, WorkerState.BUSY)


class StartStep(msgspec.Struct, frozen=True, omit_defaults=True):
    """One attempt or repair at start-up: what was tried, how long it took, why it failed."""

    name: str
    seconds: float
    error: str | None = None


class WorkerInfo(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`slots` is how many requests it runs at once; `capabilities` names the fields it can honour."""

    id: str
    state: WorkerState
    host: str = ""
    pid: int = 0
    engine: str = ""
    model: str = ""
    model_dir: str = ""
    max_model_len: int = 0
    slots: int = 0
    running: int = 0
    batch_mode: bool = False
    capabilities: tuple[str, ...] = ()
    effective_args: dict[str, Any] = {}
    start_report: tuple[StartStep, ...] = ()
    reason: str | None = None
    started_at: float = 0.0
    finished_total: int = 0
    output_tokens_total: int = 0
    tokens_per_s: float = 0.0


class WorkerSeen(msgspec.Struct, frozen=True):
    """A worker as the broker knows it; `age_s` since its last beat, by the queue clock. `name` is its process's own."""

    info: WorkerInfo
    age_s: float
    is_live: bool
    name: str = ""
