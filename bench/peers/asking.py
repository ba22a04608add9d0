"""The asking process of a peer: `python -m bench.peers.asking MODULE`, in the peer's own environment.

The same closed loop as for us, on the same event loop. Writes what it measured to a file and then waits to be ended.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import Iterable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from bench.load import Run, closed_loop, for_seconds

ANSWER = "no-op"


@dataclass(frozen=True)
class Turn:
    """How long one side is asked with so many in flight: after the warm-up for `seconds`, or `requests` in all."""

    in_flight: int
    seconds: float
    warm_up_s: float
    requests: int | None = None

    @property
    def items(self) -> Iterable[int]:
        return for_seconds(self.seconds) if self.requests is None else range(self.requests)

    @property
    def warm_up(self) -> Iterable[int]:
        return for_seconds(self.warm_up_s)


async def measure(side: Any, poll_s: float, turn: Turn) -> Run[object]:
    """`side` is a module with an `asker`. The first answer is waited for: the worker may still start."""
    async with side.asker(poll_s) as ask:
        answer = await ask(0)
        if answer != ANSWER:
            raise ValueError(f"a no-op was answered with {answer!r}")
        await closed_loop(turn.warm_up, turn.in_flight, ask)
        return await closed_loop(turn.items, turn.in_flight, ask)


def written(run: Run[object]) -> str:
    return json.dumps({"seconds": run.seconds, "latencies_s": run.latencies_s})


def read(text: str) -> Run[object]:
    told = json.loads(text)
    return Run(told["seconds"], told["latencies_s"], [None] * len(told["latencies_s"]))


async def ask_and_wait(module: str, poll_s: float, turn: Turn, out: Path) -> None:
    run = await measure(import_module(module), poll_s, turn)
    fresh = out.with_name(out.name + ".new")
    fresh.write_text(written(run), "utf-8")
    fresh.replace(out)
    await asyncio.Event().wait()


def main() -> None:
    import uvloop

    parser = argparse.ArgumentParser(prog="python -m bench.peers.asking", description=__doc__)
    parser.add_argument("module")
    parser.add_argument("--poll-s", type=float, required=True)
    parser.add_argument("--in-flight", type=int, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--warm-up-s", type=float, required=True)
    parser.add_argument("--requests", type=int)
    parser.add_argument("--out", type=Path, required=True)
    told = parser.parse_args()
    turn = Turn(told.in_flight, told.seconds, told.warm_up_s, told.requests)
    uvloop.run(ask_and_wait(told.module, told.poll_s, turn, told.out))


if __name__ == "__main__":
    main()
