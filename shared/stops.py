"""Finds stop strings in text that arrives in pieces, and holds back what may yet become one.

Pure: knows text and token counts, no engine. The match that completes first wins; of several that
complete at one character the first of the list. These are vLLM's rules, for the engines that have none.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from shared.errors import InvalidRequest

_ROOT = 0
_NONE = -1


class Fed(NamedTuple):
    """`text` can be shown now; `stop` is the string that ended it, None while there is more."""

    text: str
    stop: str | None


class StopTable:
    """Aho-Corasick automaton of a list of stop strings: one step a character, however many there are.

    Immutable once built, so that all requests of a bucket can share one. A state stands for the
    longest end of the text that a stop string begins with.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        if not all(stops):
            raise InvalidRequest("stop: a string must not be empty", param="stop")
        self.stops = tuple(stops)
        self._next: list[dict[str, int]] = [{}]
        self._shorter: list[int] = [_ROOT]
        # Per state: the stop that completes in it, and how many characters may begin a match.
        self.completes: list[int] = [_NONE]
        self.held: list[int] = [0]
        for index, stop in enumerate(self.stops):
            self._add(index, stop)
        self._link()

    def step(self, state: int, char: str) -> int:
        while (found := self._next[state].get(char)) is None:
            if state == _ROOT:
                return _ROOT
            state = self._shorter[state]
        return found

    def _add(self, index: int, stop: str) -> None:
        state = _ROOT
        for depth, char in enumerate(stop, 1):
            found = self._next[state].get(char)
            if found is None:
                found = self._next[state][char] = len(self._next)
                self._next.append({})
                self._shorter.append(_ROOT)
                self.completes.append(_NONE)
                self.held.append(depth)
            state = found
        if self.completes[state] == _NONE:
            self.completes[state] = index

    def _link(self) -> None:
        """Breadth first, so that a shorter state is finished before a longer one looks at it."""
        waiting = deque([_ROOT])
        while waiting:
            state = waiting.popleft()
            for char, longer in self._next[state].items():
                if state != _ROOT:
                    self._shorter[longer] = self.step(self._shorter[state], char)
                waiting.append(longer)
            shorter = self._shorter[state]
            both = (self.completes[state], self.completes[shorter])
            self.completes[state] = min((i for i in both if i != _NONE), default=_NONE)
            if not self._next[state]:
                # A whole stop string that none continues: only its end can begin another.
                self.held[state] = self.held[shorter]


class StopMatcher:
    """One request's place in the table.

    Matches that complete within the first `min_tokens` tokens are passed over. With `include` the
    stop string stays in the text. Raises InvalidRequest for an empty stop string.
    """

    def __init__(
        self, stops: Sequence[str] | StopTable, *, min_tokens: int = 0, include: bool = False
    ) -> None:
        self._table = stops if isinstance(stops, StopTable) else StopTable(stops)
        self._min_tokens = min_tokens
        self._include = include
        self._state = _ROOT
        self._held = ""
        self._n_tokens = 0
        self._stop: str | None = None

    def feed(self, text: str, n_tokens: int = 1) -> Fed:
        """Text of `n_tokens` more tokens; a token's text in several pieces counts with its first.

        What follows a match is dropped, also in later calls.
        """
        if self._stop is not None:
            return Fed("", self._stop)
        table, state = self._table, self._state
        self._n_tokens += n_tokens
        is_early = self._n_tokens <= self._min_tokens
        known = self._held + text
        for end, char in enumerate(text, len(self._held) + 1):
            state = table.step(state, char)
            index = table.completes[state]
            if index != _NONE and not is_early:
                self._stop = stop = table.stops[index]
                self._held = ""
                return Fed(known[: end if self._include else end - len(stop)], stop)
        self._state = state
        ready = len(known) - (0 if self._include else table.held[state])
        self._held = known[ready:]
        return Fed(known[:ready], None)

    def flush(self) -> str:
        """The generation is over: what was held back is text after all."""
        text, self._held, self._state = self._held, "", _ROOT
        return text
