"""Shows one line of state for each part: redrawn in place on a terminal, plain lines elsewhere.

Knows nothing of what the lines mean, but for the colour of a few words.
"""

from __future__ import annotations

import contextlib
import re
import time
from types import TracebackType
from typing import IO, Self

from rich.columns import Columns
from rich.console import Console, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

NAME_WIDTH = 9
BAR_WIDTH = 24
PERCENT = re.compile(r"\b(\d{1,3}) ?%")
REPEAT_S = 10.0  # plain output: a line that only counts up is not printed more often than this


def state_line(name: str, text: str) -> str:
    return f"{name:<{NAME_WIDTH}} {text}"


def style_of(text: str) -> str:
    """Green for what serves, red for what is broken, yellow for what is on its way."""
    first = text.split(maxsplit=1)[0] if text else ""
    if first in ("ready", "busy"):
        return "green"
    if first in ("died", "failed", "stalled"):
        return "red"
    return "dim" if first in ("stopped", "external") else "yellow"


def is_bad(text: str) -> bool:
    return style_of(text) == "red"


def changed(old: str | None, new: str) -> bool:
    """True where more than a number (seconds, percent) differs."""
    return old is None or _words(old) != _words(new)


def _words(text: str) -> str:
    return "".join(c for c in text if not c.isdigit())


def drawn(text: str) -> RenderableType:
    """A line with a percentage in it is drawn with a bar."""
    line = Text(text, style=style_of(text))
    percent = PERCENT.search(text)
    if percent is None or is_bad(text):
        return line
    bar = ProgressBar(total=100.0, completed=float(percent[1]), width=BAR_WIDTH)
    return Columns((bar, line), padding=(0, 2))


class Board:
    """The lines in the order of their first appearance."""

    def __init__(self, out: IO[str]) -> None:
        self._console = Console(file=out, highlight=False, soft_wrap=True)
        self._lines: dict[str, str] = {}
        self._printed_at: dict[str, float] = {}
        self._live: Live | None = None

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            # Drawn at each change and not in between: most of the time nothing changes.
            self._live = Live(console=self._console, auto_refresh=False)
            self._live.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._live is not None:
            self._live.__exit__(kind, error, trace)

    def set(self, name: str, text: str) -> None:
        """The state of a part. The same text again changes nothing."""
        old = self._lines.get(name)
        if old == text:
            return
        self._lines[name] = text
        if self._live is not None:
            if is_bad(text):  # the reason stays to be read when the line has moved on
                self._print(state_line(name, text))
            with contextlib.suppress(OSError):
                self._live.update(self._table(), refresh=True)
            return
        now = time.monotonic()
        if changed(old, text) or now - self._printed_at.get(name, 0.0) >= REPEAT_S:
            self._printed_at[name] = now
            self._print(state_line(name, text))

    def note(self, text: str) -> None:
        """A line that stays, above the states."""
        self._print(text)

    def _print(self, text: str) -> None:
        with contextlib.suppress(OSError):  # the terminal is gone; stopping must go on without it
            self._console.print(text, markup=False)

    def _table(self) -> Table:
        table = Table.grid(padding=(0, 2))
        for name, text in self._lines.items():
            table.add_row(Text(name, style="bold"), drawn(text))
        return table
