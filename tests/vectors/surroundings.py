"""What a vector runs in: its variables and no others, an empty folder, and a broker for those that need one."""

from __future__ import annotations

import contextlib
import logging
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

# What the process itself needs; no setting has one of these names.
KEPT = ("PATH", "HOME", "TMPDIR", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "VIRTUAL_ENV")


@dataclass
class Surroundings:
    """`folder` is empty and the working directory. `broker_url` starts a broker at its first call."""

    folder: Path
    broker_url: Callable[[], str]
    warnings: list[str] = field(default_factory=list)


@contextlib.contextmanager
def surroundings(env: Mapping[str, str], broker_url: Callable[[], str]) -> Iterator[Surroundings]:
    """The environment holds `env` alone meanwhile; warnings are kept instead of shown.

    `$TMP` in a value stands for the folder.
    """
    with tempfile.TemporaryDirectory(prefix="sluice-v-") as name:
        folder = Path(name).resolve()
        found = Surroundings(folder, broker_url)
        with _variables(env, folder), contextlib.chdir(folder), _kept(found.warnings):
            yield found


@contextlib.contextmanager
def _variables(env: Mapping[str, str], folder: Path) -> Iterator[None]:
    before = dict(os.environ)
    kept = {name: before[name] for name in KEPT if name in before}
    try:
        _replace({**kept, **{n: value.replace("$TMP", str(folder)) for n, value in env.items()}})
        yield
    finally:
        _replace(before)


def _replace(variables: Mapping[str, str]) -> None:
    os.environ.clear()
    os.environ.update(variables)


class _Keeper(logging.Handler):
    def __init__(self, lines: list[str]) -> None:
        super().__init__(logging.WARNING)
        self._lines = lines

    def emit(self, record: logging.LogRecord) -> None:
        self._lines.append(record.getMessage())


@contextlib.contextmanager
def _kept(lines: list[str]) -> Iterator[None]:
    keeper, root = _Keeper(lines), logging.getLogger()
    root.addHandler(keeper)
    try:
        yield
    finally:
        root.removeHandler(keeper)
