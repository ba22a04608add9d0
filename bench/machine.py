"""The machine that a figure was measured on, by kind, and whether others keep it busy."""

from __future__ import annotations

import os
import platform
import shutil

BUSY_SHARE = 0.5


def kind() -> str:
    gpu = "GPU" if shutil.which("nvidia-smi") else "no GPU"
    return (
        f"{os.cpu_count()} cores, {platform.machine()}, {gpu}, Python {platform.python_version()}"
    )


def is_busy() -> bool:
    """Whether more than half of the cores were taken in the last minute; figures are worth little then."""
    return os.getloadavg()[0] > BUSY_SHARE * (os.cpu_count() or 1)


def described() -> str:
    load = f"load {os.getloadavg()[0]:.1f}"
    return f"{kind()}, {load}" + (": BUSY, so do not trust these figures" if is_busy() else "")
