"""Shows the parts' log files, each line with the part's name before it, and follows them over
rotation.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO

LOOK_EVERY_S = 0.25
TAIL_BYTES = 256 * 1024


@dataclass
class Follower:
    """One log file; `lines` gives what is new since the last call."""

    path: Path
    last: int
    """How many of the lines that are there already to begin with."""
    _file: TextIO | None = field(default=None, repr=False)
    _partial: str = field(default="", repr=False)

    def lines(self) -> Iterator[str]:
        if self._file is None:
            yield from self._open(self.last)
        yield from self._new_lines()
        if self._turned_over():
            yield from self._new_lines()  # written since, before the turn
            self.close()
            yield from self._open(None)
            yield from self._new_lines()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _open(self, last: int | None) -> Iterator[str]:
        try:
            self._file = self.path.open(errors="replace")
        except FileNotFoundError:
            return
        if last is None:
            return
        size = self.path.stat().st_size
        self._file.seek(max(0, size - TAIL_BYTES))
        *lines, self._partial = self._file.read().split("\n")
        yield from lines[len(lines) - last :] if last < len(lines) else lines

    def _new_lines(self) -> Iterator[str]:
        if self._file is not None:
            *lines, self._partial = (self._partial + self._file.read()).split("\n")
            yield from lines

    def _turned_over(self) -> bool:
        """True where the name belongs to a newer file now."""
        if self._file is None:
            return False
        try:
            return self.path.stat().st_ino != os.fstat(self._file.fileno()).st_ino
        except FileNotFoundError:
            return False


def log_files(folder: Path, parts: Sequence[str]) -> list[Path]:
    """The current log of each part that is named, or of all."""
    return [p for p in sorted(folder.glob("*.log")) if not parts or p.stem in parts]


def last_lines(path: Path, last: int) -> list[str]:
    """The end of one log; none where there is no log."""
    follower = Follower(path, last)
    try:
        return list(follower.lines())
    finally:
        follower.close()


def follow(folder: Path, parts: Sequence[str], last: int, forever: bool) -> Iterator[str]:
    """Lines as they come; a part that starts later is taken up. Ends at once unless `forever`."""
    followers: dict[Path, Follower] = {}
    first = True
    while first or forever:
        for path in log_files(folder, parts):
            if path not in followers:
                followers[path] = Follower(path, last if first else TAIL_BYTES)
            for line in followers[path].lines():
                yield f"{path.stem:<9} {line}"
        first = False
        if forever:
            time.sleep(LOOK_EVERY_S)
    for follower in followers.values():
        follower.close()
