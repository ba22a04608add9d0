"""What runs, written down, so that a later start finds what an earlier run left: one small file per
part.

A record holds process ids with their identities, since an id alone may belong to somebody else by
then.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from cli import processes

GUARD_GRACE_S = 3.0  # guards whose owner died end their parts themselves within this time
KILL_LIMIT_S = 3.0


@dataclass(frozen=True)
class Running:
    """A guard and its part, as written by the guard. The part leads its own process group."""

    guard: int
    guard_mark: str
    part: int | None
    part_mark: str | None


@dataclass(frozen=True)
class Record:
    path: Path

    def write(self, guard: int, part: int | None) -> None:
        content = {
            "guard": guard,
            "guard_mark": processes.identity(guard) or "",
            "part": part,
            "part_mark": None if part is None else processes.identity(part) or "",
        }
        self.path.parent.mkdir(parents=True, exist_ok=True)
        fresh = self.path.with_name(self.path.name + ".new")
        fresh.write_text(json.dumps(content))
        fresh.replace(self.path)

    def read(self) -> Running | None:
        """None where there is no record, or none that can be read."""
        try:
            return Running(**json.loads(self.path.read_text()))
        except (OSError, ValueError, TypeError):
            return None

    def remove(self) -> None:
        self.path.unlink(missing_ok=True)


def alive_of(running: Running) -> list[int]:
    """Which processes of a record still live: the guard, the part, and the rest of the part's
    group.
    """
    found = set()
    if processes.identity(running.guard) == running.guard_mark:
        found.add(running.guard)
        found.update(processes.descendants(running.guard))
    if running.part is not None and running.part_mark:
        leader = processes.identity(running.part)
        since = processes.started_of(running.part_mark)
        # With its leader gone a group's number cannot be given to a new process while the group has
        # members, so members that are no older than the leader was are ours. Another leader means
        # that the number is not.
        if since is not None and leader in (None, running.part_mark):
            members = processes.group_members(running.part)
            found.update(p.pid for p in members if p.started >= since)
    found.discard(os.getpid())
    return sorted(found)


def end_leftovers(records: Iterable[Path], grace_s: float = GUARD_GRACE_S) -> list[str]:
    """Ends what earlier runs left and removes their records. Returns the names of the parts that
    were still there.

    `grace_s` is left to guards to end their parts themselves.
    """
    left = {}
    for path in records:
        running = Record(path).read()
        if running is not None and alive_of(running):
            left[path] = running
        else:
            path.unlink(missing_ok=True)
    began = time.monotonic()
    while any(map(alive_of, left.values())):
        if time.monotonic() - began >= grace_s:
            for running in left.values():
                processes.send(alive_of(running), signal.SIGKILL)
        if time.monotonic() - began > grace_s + KILL_LIMIT_S:
            break
        time.sleep(0.05)
    for path in left:
        path.unlink(missing_ok=True)
    return [path.stem for path in left]
