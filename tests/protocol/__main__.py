"""Any number of seeds of the random schedule, and of examples of the state machine: `python -m tests.protocol`."""

from __future__ import annotations

import argparse
import time
from typing import Any

from tests.protocol import machine
from tests.protocol.schedule import STEPS, Schedule
from tests.protocol.server import client_of_own_server
from tests.queue.harness import Shard


def run_seeds(client: Any, first: int, n: int, steps: int) -> int:
    """How many scripts were run. Raises what the first seed that fails raises, and says which it is."""
    n_calls = 0
    for seed in range(first, first + n):
        shard = Shard(client, f"seed-{seed}")
        shard.advance(1)
        schedule = Schedule(shard, seed)
        try:
            schedule.run(steps)
        except BaseException:
            print(f"seed={seed} failed")
            raise
        n_calls += schedule.ops.n_calls
        client.flushall()
    return n_calls


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.protocol", description=__doc__)
    parser.add_argument("--seeds", type=int, default=60)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--steps", type=int, default=STEPS, help="operations of each seed")
    parser.add_argument(
        "--examples", type=int, default=0, help="of the state machine, other ones each time"
    )
    args = parser.parse_args()
    since = time.monotonic()
    with client_of_own_server() as client:
        n_calls = run_seeds(client, args.first, args.seeds, args.steps)
        if args.examples:
            machine.run(client, args.examples, is_repeatable=False)
    print(
        f"seeds={args.seeds} steps={args.seeds * args.steps} scripts={n_calls}"
        f" examples={args.examples} seconds={time.monotonic() - since:.1f}"
    )


if __name__ == "__main__":
    main()
