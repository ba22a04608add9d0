"""What the end-to-end tests share: an environment free of the user's settings, waiting, and which processes live."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil

from cli import processes

ROOT = Path(__file__).parents[2]
POLL_S = 0.05


def environment(**own: str) -> dict[str, str]:
    """Without any setting of Sluice, and with the checkout on the path from every working directory."""
    listed = (ROOT / ".env.example").read_text("utf-8")
    settings = set(re.findall(r"^# ([A-Z][A-Z0-9_]*)=", listed, re.MULTILINE))
    kept = {name: value for name, value in os.environ.items() if name.upper() not in settings}
    return {**kept, "PYTHONPATH": str(ROOT), **own}


def wait_until(what: str, is_so: Callable[[], bool], limit_s: float) -> float:
    """Waits for a condition; returns how long it took and fails the test when it does not come."""
    began = time.monotonic()
    while not is_so():
        passed = time.monotonic() - began
        assert passed < limit_s, f"waited {passed:.0f} s in vain: {what}"
        time.sleep(POLL_S)
    return time.monotonic() - began


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def model_folder(folder: Path) -> Path:
    """The packaged model, made ready where no other test or start has done it."""
    done = subprocess.run(
        (sys.executable, "-m", "worker.model"),
        cwd=folder,
        env=environment(DATA_DIR=str(folder / "data")),
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    return Path(done.stdout.splitlines()[-1])


class Family:
    """A process and all below it as they are now, to be looked for later. An id that was given to
    another process meanwhile does not count.
    """

    def __init__(self, pid: int) -> None:
        found = {
            member: processes.identity(member) for member in (pid, *processes.descendants(pid))
        }
        self._marks = {member: mark for member, mark in found.items() if mark is not None}

    def __len__(self) -> int:
        return len(self._marks)

    def alive(self) -> list[int]:
        return [pid for pid, mark in self._marks.items() if processes.identity(pid) == mark]

    def is_gone(self) -> bool:
        return not self.alive()

    def has_engine(self) -> bool:
        """Whether one of them is vLLM's engine process, which outlives its parent if nobody ends it."""
        return any("EngineCore" in name for name in map(_name, self._marks))


def of_data_folder(data: Path) -> list[int]:
    """Every living process that was started for this data folder, whoever its parent is by now."""
    wanted = str(data)
    found = []
    for process in psutil.process_iter():
        try:
            is_zombie = process.status() == psutil.STATUS_ZOMBIE
            if not is_zombie and process.environ().get("DATA_DIR") == wanted:
                found.append(process.pid)
        except (psutil.Error, OSError):
            continue
    return found


def log_ends(folder: Path, lines: int = 30) -> str:
    """The last lines of every log, for the text of a failure."""
    parts = []
    for path in sorted(folder.glob("*.log")):
        text = path.read_text("utf-8", errors="replace").splitlines()
        parts += [f"--- {path.name}", *text[-lines:]]
    return "\n".join(parts)


def _name(pid: int) -> str:
    try:
        return " ".join(psutil.Process(pid).cmdline())
    except psutil.Error:
        return ""
