"""`python -m tests.chaos --seconds N --seed S`: whole services under faults, judged by what their clients saw.

Exit codes: 0 nothing was lost, double or stuck, 1 something was, 2 the service did not come up,
130 it was interrupted.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import re
import shutil
import sys
import tempfile
from collections import Counter
from pathlib import Path

from tests.chaos.run import Result, Run
from tests.chaos.stack import StartError

SHORTEST_S = 20
SHOWN = 20  # of odd replies, and of failed ids


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60, help="the whole wall time")
    parser.add_argument("--seed", type=int, help="of clients and faults; by chance if not given")
    options = parser.parse_args()
    if options.seconds < SHORTEST_S:
        parser.error(f"--seconds: at least {SHORTEST_S}")
    seed = random.randrange(10**6) if options.seed is None else options.seed
    folder = Path(tempfile.mkdtemp(prefix="sluice-chaos-"))
    run = Run(options.seconds, seed, folder)
    print(f"chaos: {options.seconds:g} s, seed {seed}, shards {run.shards}", flush=True)
    is_kept = False
    try:
        result = asyncio.run(run.run())
        is_kept = not result.is_good
        show(result, folder)
        return int(is_kept)
    except StartError as error:
        is_kept = True
        print(f"chaos: {error}; logs in {folder}", file=sys.stderr)
        return 2
    except (KeyboardInterrupt, asyncio.CancelledError):
        return 130
    finally:
        if not is_kept:
            shutil.rmtree(folder, ignore_errors=True)


def show(result: Result, folder: Path) -> None:
    """What went wrong, then the figures; the counts of all ids are the last line."""
    history, verdict = result.history, result.verdict
    for text in history.odd[:SHOWN]:
        print(f"odd: {text}")
    for rid, reason in list(verdict.failures.items())[:SHOWN]:
        print(f"failed: {reason}\n{history.told(rid)}")
    if not result.is_good:
        print(f"{len(history.odd)} odd replies, {len(verdict.failures)} failed ids")
        (folder / "events.txt").write_text(
            "\n".join(f"{at:8.3f} {text}" for at, text in history.events)
        )
        print(f"kept: {folder}")
    for text in logged(folder)[:SHOWN]:
        print(f"logged: {text}")
    print("calls", _counts(history.calls))
    print("errors", _counts(verdict.errors))
    print("faults", _counts(history.faults))
    print(verdict.line(history.unknown), flush=True)


def logged(folder: Path) -> list[str]:
    """What the parts themselves hold for errors."""
    found = []
    for log in sorted(folder.glob("*.log")):
        lines = log.read_text("utf-8", "replace").splitlines()
        found += [f"{log.stem} {line}" for line in lines if re.search(r" (ERROR|CRITICAL) ", line)]
    return found


def _counts(counts: Counter[str]) -> str:
    shown = (f"{name}={n}" for name, n in sorted(counts.items()))
    return " ".join([f"all={counts.total()}", *shown])


if __name__ == "__main__":
    sys.exit(main())
