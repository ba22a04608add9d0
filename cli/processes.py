"""Processes as the operating system sees them: who is whose child, and whether a process id still
means the same one.

Standard library on Linux (the guard stays small); elsewhere through psutil. Knows nothing of the
service's parts.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36


@dataclass(frozen=True)
class Process:
    """`started` grows with time within one run of the machine; its unit depends on the system."""

    pid: int
    parent: int
    group: int
    started: float
    is_zombie: bool


def all_processes() -> dict[int, Process]:
    """Every process by id. One that ends during the call may be missing."""
    if not sys.platform.startswith("linux"):
        return _all_by_psutil()
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            process = _read_stat(int(entry.name))
            if process is not None:
                found[process.pid] = process
    return found


def find(pid: int) -> Process | None:
    """The living process with this id; a zombie counts as gone."""
    if sys.platform.startswith("linux"):
        process = _read_stat(pid)
    else:
        process = _all_by_psutil().get(pid)
    return None if process is None or process.is_zombie else process


def _read_stat(pid: int) -> Process | None:
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (OSError, UnicodeDecodeError):
        return None
    # The name in parentheses may hold spaces and parentheses itself.
    rest = text[text.rindex(")") + 2 :].split()
    return Process(pid, int(rest[1]), int(rest[2]), float(rest[19]), rest[0] in "ZX")


def _all_by_psutil() -> dict[int, Process]:
    import psutil

    found = {}
    for process in psutil.process_iter():
        try:
            found[process.pid] = Process(
                process.pid,
                process.ppid(),
                os.getpgid(process.pid),
                process.create_time(),
                process.status() == psutil.STATUS_ZOMBIE,
            )
        except (psutil.Error, OSError):
            continue
    return found


@cache
def boot_id() -> str:
    """Tells one run of the machine from the next, since process ids and start times begin anew."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def identity(pid: int) -> str | None:
    """A text that is equal only for the very same process; None where there is none."""
    process = find(pid)
    return None if process is None else f"{boot_id()}:{process.started}"


def started_of(mark: str) -> float | None:
    """The start time inside an `identity`, or None where it is of another run of the machine."""
    boot, _, started = mark.rpartition(":")
    return float(started) if boot == boot_id() else None


def descendants(pid: int) -> list[int]:
    """Living children of a process and theirs, the nearest first."""
    children: dict[int, list[Process]] = {}
    for process in all_processes().values():
        children.setdefault(process.parent, []).append(process)
    found: list[int] = []
    waiting = [pid]
    while waiting:
        for child in children.get(waiting.pop(0), ()):
            waiting.append(child.pid)
            if not child.is_zombie:
                found.append(child.pid)
    return found


def group_members(group: int) -> list[Process]:
    return [p for p in all_processes().values() if p.group == group and not p.is_zombie]


def send(pids: Iterable[int], number: signal.Signals) -> None:
    for pid in pids:
        try:
            os.kill(pid, number)
        except (ProcessLookupError, PermissionError):
            continue  # gone meanwhile, or its id belongs to another user now


def send_group(group: int, number: signal.Signals) -> None:
    try:
        os.killpg(group, number)
    except (ProcessLookupError, PermissionError):
        pass  # nobody is left in it


def adopt_orphans() -> None:
    """Makes this process the new parent of all whose parent dies below it (Linux; elsewhere
    nothing).
    """
    _prctl(PR_SET_CHILD_SUBREAPER, 1)


def die_with_parent(number: signal.Signals = signal.SIGKILL) -> None:
    """Asks the kernel for a signal at the death of the parent (Linux; elsewhere nothing)."""
    _prctl(PR_SET_PDEATHSIG, int(number))


def _prctl(option: int, value: int) -> None:
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)
