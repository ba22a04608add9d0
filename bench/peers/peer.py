"""The queues that `bench.queue` is measured beside: how each is started for one turn, and how often it looks.

Both wait for a result by asking for it again and again, so each gets the interval that serves it best at that number
in flight; their own defaults (0.2 and 0.5 s) would make the comparison easy.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from bench.load import Run
from bench.peers.asking import Turn, read
from bench.peers.venv import python_of
from bench.settings import PEER_BROKER, environment
from bench.stack import Guarded

ALONE = 1


@dataclass(frozen=True)
class Pace:
    """Seconds between two looks: of who waits for a result, and of a worker that polls for work."""

    result_s: float
    work_s: float


@dataclass(frozen=True)
class Peer:
    """`name` is that of its lock; `worker` its command after the interpreter."""

    name: str
    module: str
    worker: Callable[[Pace], tuple[str, ...]]
    alone: Pace
    crowded: Pace

    def pace(self, in_flight: int) -> Pace:
        return self.alone if in_flight == ALONE else self.crowded

    def run(self, redis_url: str, turn: Turn, folder: Path) -> Run[object]:
        """One turn with a worker process and an asking process of its own. Raises StackError."""
        python = str(python_of(self.name))
        pace = self.pace(turn.in_flight)
        folder.mkdir(parents=True)
        out = folder / "run.json"
        env = environment({PEER_BROKER: redis_url})
        asking = (
            *(python, "-m", "bench.peers.asking", self.module, "--poll-s", str(pace.result_s)),
            *("--in-flight", str(turn.in_flight), "--seconds", str(turn.seconds)),
            *("--warm-up-s", str(turn.warm_up_s), "--out", str(out)),
            *(("--requests", str(turn.requests)) if turn.requests is not None else ()),
        )
        with (
            Guarded("worker", (python, "-m", *self.worker(pace)), folder, env),
            Guarded("asking", asking, folder, env) as program,
        ):
            program.until(out.exists)
        return read(out.read_text("utf-8"))


PEERS = (
    Peer(
        "taskiq",
        "bench.peers.taskiq_noop",
        lambda _: (
            *("taskiq", "worker", "--workers", "1", "--log-level", "WARNING"),
            "bench.peers.taskiq_noop:broker",
        ),
        alone=Pace(0.001, 0),
        crowded=Pace(0.002, 0),
    ),
    Peer(
        "arq",
        "bench.peers.arq_noop",
        lambda pace: ("bench.peers.arq_noop", str(pace.work_s)),
        alone=Pace(0.001, 0.001),
        crowded=Pace(0.05, 0.005),
    ),
)
