"""Small stand-in parts for the tests of guard and supervisor, and the waiting that goes with them."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path

from cli import processes

# A part like a worker with an engine below it: a child of its own that ignores SIGTERM, and a
# grandchild that left the group.
FAMILY = """
import os, signal, subprocess, sys, time
folder = sys.argv[1]
sleeper = (
    "import os, signal, sys, time; {how}; "
    "open(sys.argv[1], 'w').write(str(os.getpid())); time.sleep(600)"
)
stubborn = sleeper.format(how="signal.signal(signal.SIGTERM, signal.SIG_IGN)")
plain = sleeper.format(how="pass")
subprocess.Popen([sys.executable, "-c", stubborn, folder + "/child"])
subprocess.Popen([sys.executable, "-c", plain, folder + "/stray"], start_new_session=True)
open(folder + "/main", "w").write(str(os.getpid()))
print("family is up", flush=True)
time.sleep(600)
"""
MEMBERS = ("main", "child", "stray")


def family_command(folder: Path) -> tuple[str, ...]:
    return (sys.executable, "-c", FAMILY, str(folder))


def until(true: Callable[[], bool], limit_s: float = 60.0) -> float:
    """Waits for a condition and returns how long it took; fails the test when it does not come."""
    began = time.monotonic()
    while not true():
        assert time.monotonic() - began < limit_s, "waited in vain"
        time.sleep(0.02)
    return time.monotonic() - began


def number_in(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None


def family(folder: Path) -> dict[str, int]:
    """The process ids of a family, once all its members are up."""
    until(lambda: all(number_in(folder / name) for name in MEMBERS))
    found = {name: number_in(folder / name) for name in MEMBERS}
    return {name: pid for name, pid in found.items() if pid is not None}


def all_gone(pids: list[int]) -> bool:
    return all(processes.find(pid) is None for pid in pids)
