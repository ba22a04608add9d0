"""Trims short answers: cuts example tails and caps the number of sentences. Pure text rules of the first seed.

What to apply was decided at intake (`Trim`), so an answer can be rendered anywhere from its text alone.
"""

from __future__ import annotations

import re

from shared.request import Trim

_EXAMPLE = re.compile("(?:例如|比如|举例来说|举例)[:：]")
_BEFORE_EXAMPLE = " ,，。;；:\n"
_SENTENCE_END = re.compile("[。！？；\n]")
NO_CAP = 0
STRIP_ONLY = Trim(cut_examples=False, max_sentences=NO_CAP)


def postprocess(text: str | None, trim: Trim | None) -> str:
    """`None` for `trim` leaves the text as the worker gave it."""
    if trim is None:
        return text or ""
    shown = (text or "").strip()
    if trim.cut_examples:
        shown = cut_examples(shown)
    return cap_sentences(shown, trim.max_sentences) if trim.max_sentences else shown


def cut_examples(text: str) -> str:
    """Ends before the first example marker; never to nothing: an answer that is all example is kept."""
    marker = _EXAMPLE.search(text)
    if marker is None:
        return text
    return text[: marker.start()].rstrip(_BEFORE_EXAMPLE) or text


def cap_sentences(text: str, most: int) -> str:
    """Cuts after the `most`-th sentence that is not blank and keeps the white space between the others."""
    start = count = 0
    for end in _SENTENCE_END.finditer(text):
        if text[start : end.end()].strip():
            count += 1
            if count == most:
                return text[: end.end()].strip()
        start = end.end()
    return text
