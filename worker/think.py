"""Takes reasoning blocks out of a finished text. Pure; knows no model and no engine.

A block is `<think>…</think>`, in any case. The pair is an argument, since models differ.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

TAG = "think"


@dataclass(frozen=True)
class Tags:
    opener: str = f"<{TAG}>"
    closer: str = f"</{TAG}>"


class Answer(NamedTuple):
    """`reasoning` is what was taken out; None where nothing was, or where it had to be the answer."""

    text: str
    reasoning: str | None = None


@dataclass(frozen=True)
class _Patterns:
    tag: re.Pattern[str]
    closer: re.Pattern[str]
    opener_of_line: re.Pattern[str]


PLAIN = Tags()


def opens_block(prompt_text: str, tags: Tags = PLAIN) -> bool:
    """Whether a rendered prompt ends inside a block, so that the answer begins with reasoning."""
    return prompt_text.rstrip().lower().endswith(tags.opener.lower())


def strip_think(text: str | None, *, template_opens: bool = False, tags: Tags = PLAIN) -> str:
    """The answer alone."""
    return split_think(text, template_opens=template_opens, tags=tags).text


def split_think(text: str | None, *, template_opens: bool = False, tags: Tags = PLAIN) -> Answer:
    """Answer and reasoning apart. `template_opens`: the prompt ended inside a block.

    Closed blocks go. What a stray closer ends goes too, but only where a block was open: a model that
    merely mentions the tag keeps its words. A stray opener at the start of a line runs to the end.
    If nothing is left, the first reasoning that is not blank is the answer.
    """
    whole = (text or "").strip()
    lower = whole.lower()
    if tags.opener.lower() not in lower and tags.closer.lower() not in lower:
        return Answer(whole)
    patterns = _patterns(tags)
    rest, inner = _without_blocks(whole, patterns)
    if template_opens or inner:
        *closed, last = patterns.closer.split(rest)
        if closed:
            inner = closed + inner if template_opens else inner + closed
            rest = last
    opened = patterns.opener_of_line.search(rest)
    if opened:
        inner.append(rest[opened.end() :])
        rest = rest[: opened.start()]
    answer = rest.strip()
    thoughts = [t for part in inner if (t := patterns.tag.sub("", part).strip())]
    if answer:
        return Answer(answer, "\n".join(thoughts) or None)
    return Answer(thoughts[0] if thoughts else "")


def _without_blocks(text: str, patterns: _Patterns) -> tuple[str, list[str]]:
    """The text outside closed blocks, and the blocks' insides. One pass over the tags: a pattern for
    a whole block looks for its closer again from every opener.
    """
    outside, inside = [], []
    done = 0
    opened: re.Match[str] | None = None
    for tag in patterns.tag.finditer(text):
        if tag["opener"]:
            opened = opened or tag
        elif opened:
            outside.append(text[done : opened.start()])
            inside.append(text[opened.end() : tag.start()])
            done = tag.end()
            opened = None
    return "".join((*outside, text[done:])), inside


@lru_cache(maxsize=8)
def _patterns(tags: Tags) -> _Patterns:
    opener, closer = re.escape(tags.opener), re.escape(tags.closer)
    return _Patterns(
        tag=re.compile(f"(?P<opener>{opener})|{closer}", re.IGNORECASE),
        closer=re.compile(closer, re.IGNORECASE),
        opener_of_line=re.compile(rf"^[ \t]*{opener}", re.IGNORECASE | re.MULTILINE),
    )
