"""`python -m tests.simulation --seed N [--seeds M] [--steps K] [--profile P] [--trace]`: runs, and their verdicts."""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter

from tests.simulation.suite import SUITE, run
from tests.valkey_server import Server


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation")
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    parser.add_argument("--seeds", type=int, default=1, help="how many, one after the other")
    parser.add_argument("--steps", type=int, help="how long; by default as in CI")
    parser.add_argument("--profile", choices=SUITE, default="all")
    parser.add_argument("--trace", action="store_true", help="print what happened")
    args = parser.parse_args()
    steps = args.steps or SUITE[args.profile].steps
    began, totals, broken = time.perf_counter(), Counter[str](), 0
    server = Server().start()
    try:
        for seed in range(args.seed, args.seed + args.seeds):
            verdict = run(str(server.socket), seed, steps, args.profile)
            if args.trace:
                print(*verdict.trace, sep="\n")
            totals.update(verdict.counts, commands=verdict.commands, faults=verdict.faults)
            for line in verdict.broken:
                print(f"seed {seed}: {line}")
            broken += bool(verdict.broken)
            totals["virtual_s"] += round(verdict.virtual_s)
    finally:
        server.stop()
        server.clean()
    print(
        f"{args.seeds} seeds, {broken} broken, {time.perf_counter() - began:.1f} s: {dict(totals)}"
    )
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
