"""The folder that holds what must survive: the broker's files, logs, records of what runs. One
owner at a time.

Its mode is 0700 since queued prompts are in it. Knows no part of the service.
"""

from __future__ import annotations

import fcntl
import json
import os
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from cli import processes


class FolderInUse(Exception):
    """Another process owns the folder; the text names it."""


@dataclass(frozen=True)
class Owner:
    pid: int
    mark: str


class DataFolder:
    """Paths inside the folder, and the lock that its owner holds (`with`)."""

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        self.broker = self.path / "broker"
        self.logs = self.path / "logs"
        self.run = self.path / "run"
        self.broker_url = self.run / "broker.url"
        self._lock: IO[str] | None = None

    def record(self, part: str) -> Path:
        return self.run / f"{part}.json"

    def records(self) -> list[Path]:
        return sorted(self.run.glob("*.json"))

    def log(self, part: str) -> Path:
        return self.logs / f"{part}.log"

    def __enter__(self) -> Self:
        try:
            for folder in (self.path, self.broker, self.logs, self.run):
                folder.mkdir(parents=True, exist_ok=True)
                folder.chmod(0o700)
            lock = (self.run / "owner").open("a+")
        except OSError as error:
            raise FolderInUse(f"DATA_DIR={self.path} cannot be used: {error}") from error
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.close()
            owner = self.owner()
            who = "another process" if owner is None else f"pid {owner.pid}"
            raise FolderInUse(
                f"{self.path} is in use by {who}: stop that one first (`make down`), "
                "or choose another folder with DATA_DIR"
            ) from None
        self._lock = lock
        lock.truncate(0)
        mark = processes.identity(os.getpid())
        lock.write(json.dumps({"pid": os.getpid(), "mark": mark}))
        lock.flush()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._lock is not None:
            self._lock.truncate(0)
            self._lock.close()
            self._lock = None

    def owner(self) -> Owner | None:
        """The living process that owns the folder, if any."""
        try:
            content = json.loads((self.run / "owner").read_text())
            owner = Owner(int(content["pid"]), str(content["mark"]))
        except (OSError, ValueError, KeyError, TypeError):
            return None
        return owner if processes.identity(owner.pid) == owner.mark else None
