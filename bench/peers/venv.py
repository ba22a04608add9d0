"""An environment of its own for each peer, made from its lock on first use, under `build/`. Knows no peer."""

from __future__ import annotations

import hashlib
import platform
import subprocess
import sys
from pathlib import Path

from bench import figures
from bench.settings import ROOT
from bench.stack import StackError

FOLDER = ROOT / "build" / "peers"
STAMP = "installed.txt"
ERROR_LINES = 6


def python_of(peer: str) -> Path:
    """The interpreter that has the peer installed. Raises StackError where that cannot be done."""
    lock = ROOT / "requirements" / f"peer-{peer}.txt"
    folder = FOLDER / peer
    python, stamp = folder / "bin" / "python", folder / STAMP
    wanted = f"{platform.python_version()} {hashlib.sha256(lock.read_bytes()).hexdigest()}"
    if python.exists() and stamp.is_file() and stamp.read_text("utf-8") == wanted:
        return python
    figures.note(f"installing {peer} into {folder.relative_to(ROOT)}")
    _run(sys.executable, "-m", "venv", "--clear", str(folder))
    _run(str(python), "-m", "pip", "install", "--no-input", "--no-deps", "-r", str(lock))
    stamp.write_text(wanted, "utf-8")
    return python


def _run(*command: str) -> None:
    done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    if done.returncode != 0:
        end = "\n".join(done.stderr.splitlines()[-ERROR_LINES:])
        raise StackError(f"{' '.join(command)} failed:\n{end}")
