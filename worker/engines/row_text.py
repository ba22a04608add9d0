"""The text of one row while its tokens come: decoding across token borders, and stop strings.

For engines that have neither of their own. A stop string counts once it is complete; the earliest to
complete wins, ties go by the order given; the text ends before it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

UNFINISHED = "\ufffd"  # what a decoder shows for bytes whose character is not complete


class RowText:
    """`add` tokens, `take` new text. Characters that may begin a stop string are held back."""

    __slots__ = (
        "_decode",
        "_decoded",
        "_given",
        "_hold",
        "_min_tokens",
        "_prefix",
        "_stops",
        "ids",
        "text",
    )

    def __init__(
        self,
        decode: Callable[[Sequence[int]], str],
        stops: Sequence[str] = (),
        min_tokens: int = 0,
    ) -> None:
        self._decode = decode
        self._stops = tuple(stops)
        self._hold = max(map(len, stops), default=1) - 1
        self._min_tokens = min_tokens
        # Tokens before `_decoded` have their text; those from `_prefix` on are context for the next.
        self._prefix = 0
        self._decoded = 0
        self._given = 0
        self.ids: list[int] = []
        self.text = ""

    def add(self, token_id: int) -> str | None:
        """The stop string that this token completed, if any. No stop counts within `min_tokens`."""
        self.ids.append(token_id)
        before = len(self.text)
        self._extend(at_end=False)
        return self._cut(before) if len(self.ids) > self._min_tokens else None

    def add_silently(self, token_id: int) -> None:
        """A token that ends the row: counted, never shown."""
        self._extend(at_end=True)
        self.ids.append(token_id)
        self._decoded = len(self.ids)

    def take(self, *, is_last: bool) -> str:
        """Text that is new since the last call."""
        if is_last:
            self._extend(at_end=True)
        end = len(self.text) - (0 if is_last else self._hold)
        start, self._given = self._given, max(end, self._given)
        return self.text[start : self._given]

    def _extend(self, *, at_end: bool) -> None:
        if self._decoded == len(self.ids):
            return
        known = self._decode(self.ids[self._prefix : self._decoded])
        longer = self._decode(self.ids[self._prefix :])
        if len(longer) > len(known) and (at_end or not longer.endswith(UNFINISHED)):
            self.text += longer[len(known) :]
            self._prefix, self._decoded = self._decoded, len(self.ids)

    def _cut(self, before: int) -> str | None:
        found = find_stop(self.text, self._stops, before)
        if found is None:
            return None
        stop, start = found
        self.text = self.text[:start]
        self._decoded = len(self.ids)
        return stop


def find_stop(text: str, stops: Sequence[str], new_from: int = 0) -> tuple[str, int] | None:
    """The first stop string to complete at or after `new_from`, and where it starts."""
    best: tuple[int, str, int] | None = None
    for stop in stops:
        start = text.find(stop, max(0, new_from - len(stop) + 1))
        if start >= 0 and (best is None or start + len(stop) < best[0]):
            best = (start + len(stop), stop, start)
    return None if best is None else (best[1], best[2])
