"""`clean`: removes logs; with `--all` the data and the fetched models. Touches neither what runs
nor `./merged`.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

from cli.data_folder import DataFolder

LOGS = ("logs",)
ALL = ("broker", "logs", "run", "models")  # what Sluice itself makes in the data folder


def clean(data: Path, models: Path, everything: bool, say: Callable[[str], None]) -> None:
    """Raises `FolderInUse` while an `up` owns the data. What else lies in the data folder stays."""
    if data.exists():
        with DataFolder(data):
            for name in ALL if everything else LOGS:
                remove(data / name, say)
        if not any(data.iterdir()):
            data.rmdir()
    if everything:
        remove(models, say)


def remove(path: Path, say: Callable[[str], None]) -> None:
    if path.is_dir():
        say(f"removing {path}")
        shutil.rmtree(path)
