"""The text of one row while its tokens come: decoding across token borders, and stop strings.

For engines that have neither of their own. The rules of stopping are those of `shared/stops.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache

from shared.stops import StopMatcher, StopTable

UNFINISHED = "\ufffd"  # what a decoder shows for bytes whose character is not complete


@lru_cache(maxsize=256)
def stop_table(stops: tuple[str, ...]) -> StopTable:
    """One for all requests of a bucket."""
    return StopTable(stops)


class RowText:
    """`add` tokens until a stop or the `end`; `take` what can be shown so far."""

    __slots__ = ("_decode", "_decoded", "_matcher", "_prefix", "_ready", "ids")

    def __init__(
        self, decode: Callable[[Sequence[int]], str], stops: StopTable, min_tokens: int = 0
    ) -> None:
        self._decode = decode
        self._matcher = StopMatcher(stops, min_tokens=min_tokens)
        # Tokens before `_decoded` have their text; those from `_prefix` on are context for the next.
        self._prefix = 0
        self._decoded = 0
        self._ready: list[str] = []
        self.ids: list[int] = []

    def add(self, token_id: int) -> str | None:
        """The stop string that this token completed, if any."""
        self.ids.append(token_id)
        fed = self._matcher.feed(self._new_text(is_over=False))
        self._ready.append(fed.text)
        return fed.stop

    def end(self, last_id: int | None = None) -> None:
        """No stop string came: what was held back is text after all. `last_id` ended the row; it
        counts, and is not shown.
        """
        self._ready.append(self._matcher.feed(self._new_text(is_over=True), 0).text)
        self._ready.append(self._matcher.flush())
        if last_id is not None:
            self.ids.append(last_id)

    def take(self) -> str:
        """Text since the last call."""
        text = "".join(self._ready)
        self._ready.clear()
        return text

    def _new_text(self, *, is_over: bool) -> str:
        known = self._decode(self.ids[self._prefix : self._decoded])
        longer = self._decode(self.ids[self._prefix :])
        if len(longer) <= len(known) or (longer.endswith(UNFINISHED) and not is_over):
            return ""
        self._prefix, self._decoded = self._decoded, len(self.ids)
        return longer[len(known) :]
