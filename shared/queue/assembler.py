"""One reader's text, put together from chunks that come twice, late, in parts or not at all. No I/O.

What leaves here is in order and without gaps: within an attempt each character once, never two attempts in one text.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby

import msgspec

from shared.request import Chunk

# Attempt (0: none is known yet) and offset in code points: what a reader has, and where it goes on.
Place = tuple[int, int]


class Text(msgspec.Struct, frozen=True):
    """More of the text; `offset` counts the code points of this attempt that the reader has had before it."""

    attempt: int
    offset: int
    text: str

    def __repr__(self) -> str:
        return f"Text(attempt={self.attempt}, offset={self.offset}, text_len={len(self.text)})"


class Reset(msgspec.Struct, frozen=True):
    """What was read so far is void: another attempt has begun, and its text starts anew."""

    attempt: int


class Assembler:
    """Follows one text from `after` on: the newest attempt's, since an older one's answer is never taken."""

    def __init__(self, after: Place | None = None) -> None:
        self.attempt, self.offset = after or (0, 0)
        self._token: str | None = None
        self._known = self.offset
        self._left: set[str] = set()

    @property
    def has_gap(self) -> bool:
        """More of this attempt has been heard of than the reader could be given."""
        return self._known > self.offset

    def add(self, chunk: Chunk) -> list[Text | Reset]:
        """What is new in it. An empty chunk only tells how far the text is."""
        if self._is_older(chunk.attempt, chunk.token):
            return []
        found = self._begin(chunk.attempt, chunk.token)
        end = chunk.offset + len(chunk.text)
        self._known = max(self._known, end)
        if chunk.offset <= self.offset < end:
            found.append(self._more(chunk.text[self.offset - chunk.offset :]))
        return found

    def complete(self, attempt: int, token: str, text: str) -> list[Text | Reset]:
        """The rest of the final text; all of it, if the attempt that won is not the one that was followed."""
        if not attempt:
            # An outcome of a release that does not say.
            attempt = self.attempt + (self._token not in (None, token))
        found = self._begin(attempt, token)
        if len(text) > self.offset:
            found.append(self._more(text[self.offset :]))
        self._known = self.offset
        return found

    def _is_older(self, attempt: int, token: str) -> bool:
        return attempt < self.attempt or (attempt == self.attempt and token in self._left)

    def _begin(self, attempt: int, token: str) -> list[Text | Reset]:
        """Two attempts have one number where the broker forgot the first of them: its token tells them apart."""
        if attempt == self.attempt and self._token in (None, token):
            self._token = token
            return []
        if self._token is not None:
            self._left.add(self._token)
        found: list[Text | Reset] = [Reset(attempt)] if self.offset else []
        self.attempt, self.offset, self._known = attempt, 0, 0
        self._token = token
        return found

    def _more(self, text: str) -> Text:
        more = Text(self.attempt, self.offset, text)
        self.offset += len(text)
        self._known = max(self._known, self.offset)
        return more


def merged(events: Iterable[Text | Reset]) -> list[Text | Reset]:
    """The same with texts that follow each other made one."""
    found: list[Text | Reset] = []
    for attempt, run in groupby(events, lambda e: e.attempt if isinstance(e, Text) else None):
        if attempt is None:
            found += run
        else:
            texts = [event for event in run if isinstance(event, Text)]
            whole = "".join(text.text for text in texts)
            found.append(Text(attempt, texts[0].offset, whole))
    return found
