"""How a long preparation shows itself on standard error, and how libraries are kept from adding
their own bars.
"""

from __future__ import annotations

import contextlib
import io
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Self


class Progress:
    """A bar on a terminal; elsewhere one plain line at each change of text and every few seconds
    between.
    """

    EVERY_S = 2.0

    def __init__(self, title: str) -> None:
        self.title = title
        self._out = sys.stderr  # kept: libraries' own output is silenced by replacing sys.stderr
        self._line = ("", 0.0)
        self._bar: contextlib.ExitStack | None = None

    def __enter__(self) -> Self:
        if self._out.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
            from rich.progress import Progress as RichProgress

            self._bar = contextlib.ExitStack()
            columns = (
                TextColumn("{task.description}"),
                BarColumn(),
                TextColumn("{task.percentage:>3.0f} %"),
                TimeElapsedColumn(),
                TextColumn("{task.fields[text]}"),
            )
            self._rich = self._bar.enter_context(
                RichProgress(*columns, console=Console(file=self._out))
            )
            self._task = self._rich.add_task(self.title, total=1.0, text="")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.close()

    def show(self, fraction: float, text: str) -> None:
        if self._bar is not None:
            self._rich.update(self._task, completed=fraction, text=text)
            return
        now = time.monotonic()
        if text != self._line[0] or now - self._line[1] >= self.EVERY_S:
            self._line = (text, now)
            print(f"{self.title}: {fraction:4.0%} {text}", file=self._out, flush=True)


@contextlib.contextmanager
def watched(look: Callable[[], None], every_s: float = 0.5) -> Iterator[None]:
    """Calls `look` from a thread while the block runs, and once at its end."""
    done = threading.Event()

    def watch() -> None:
        while not done.wait(every_s):
            look()

    thread = threading.Thread(target=watch, name="download-progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
    look()


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Silences the libraries' own bars and notices; an error still comes as an exception."""
    with contextlib.redirect_stderr(io.StringIO()), contextlib.redirect_stdout(io.StringIO()):
        yield


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
