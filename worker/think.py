"""Takes reasoning blocks out of a finished text, and counts what they cost. Pure; knows no model and no engine.

A block is `<think>…</think>`, in any case. The pair is an argument, since models differ. A tag or a block in
quotes is one that is spoken of. The limit: who speaks of a block without quotes loses it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

TAG = "think"
# Left and right. Single quotes are left out: they are apostrophes as well.
QUOTES = (("`", "`"), ('"', '"'), ("“", "”"), ("「", "」"))


@dataclass(frozen=True)
class Tags:
    opener: str = f"<{TAG}>"
    closer: str = f"</{TAG}>"


class Answer(NamedTuple):
    """`reasoning` is what was taken out; None where nothing was, or where it had to be the answer.

    `spent` is all that was written as reasoning, tags included; `has_answer` is False where nothing else
    was, so that `text` is reasoning, or nothing.
    """

    text: str
    reasoning: str | None = None
    spent: str = ""
    has_answer: bool = True


@dataclass(frozen=True)
class _Patterns:
    tag: re.Pattern[str]
    opener_of_line: re.Pattern[str]


PLAIN = Tags()


@dataclass(frozen=True)
class Thinking:
    """How a model marks its reasoning, and how many tokens of it a text is."""

    tags: Tags = PLAIN
    count: Callable[[str], int] = len

    def split(self, text: str, prompt_text: str) -> Answer:
        """Answer and reasoning apart; `prompt_text` is the rendered prompt."""
        # A thinking model's template may end the prompt with the opening tag.
        return split_think(text, template_opens=opens_block(prompt_text, self.tags), tags=self.tags)

    def tokens(self, answer: Answer, completion_tokens: int) -> int:
        """How many of an answer's tokens went into its reasoning: all of them where there is nothing else."""
        if not answer.has_answer:
            return completion_tokens
        return min(self.count(answer.spent), completion_tokens) if answer.spent else 0


def opens_block(prompt_text: str, tags: Tags = PLAIN) -> bool:
    """Whether a rendered prompt ends inside a block, so that the answer begins with reasoning."""
    # Its end alone is looked at: a prompt may be a megabyte, and this is asked for every answer.
    return prompt_text.rstrip()[-len(tags.opener) :].lower() == tags.opener.lower()


def strip_think(text: str | None, *, template_opens: bool = False, tags: Tags = PLAIN) -> str:
    """The answer alone."""
    return split_think(text, template_opens=template_opens, tags=tags).text


def split_think(text: str | None, *, template_opens: bool = False, tags: Tags = PLAIN) -> Answer:
    """Answer and reasoning apart. `template_opens`: the prompt ended inside a block.

    Closed blocks go. What a stray closer ends goes too, but only where there was a block: a model that
    merely mentions the tag keeps its words, and a closer between words is one of them unless a block opened
    twice. A stray opener at the start of a line runs to the end. Nothing in quotes is a tag. If nothing is
    left, the first reasoning that is not blank is the answer.
    """
    whole = (text or "").strip()
    if template_opens:
        whole = tags.opener + whole
    lower = whole.lower()
    if tags.opener.lower() not in lower and tags.closer.lower() not in lower:
        return Answer(whole)
    patterns = _patterns(tags)
    rest, blocks = _without_blocks(whole, patterns, every_closer=template_opens)
    opened = patterns.opener_of_line.search(rest)
    if opened:
        blocks.append(rest[opened.start() :])
        rest = rest[: opened.start()]
    answer = rest.strip()
    spent = "".join(blocks)
    if template_opens:
        spent = spent.removeprefix(tags.opener)  # not the model's own
    thoughts = [t for part in blocks if (t := _without_tags(part, patterns).strip())]
    if answer:
        return Answer(answer, "\n".join(thoughts) or None, spent)
    return Answer(thoughts[0] if thoughts else "", spent=spent, has_answer=False)


def _without_blocks(text: str, patterns: _Patterns, *, every_closer: bool) -> tuple[str, list[str]]:
    """The text outside, the blocks, and what stray closers end. One pass over the tags: a pattern for a
    whole block looks for its closer again from every opener. `every_closer`: none is a word.
    """
    outside: list[str] = []  # since the last stray closer
    blocks, ended = [], []
    done = nested = owed = 0
    opened: re.Match[str] | None = None
    for tag in patterns.tag.finditer(text):
        if tag["quoted"]:
            continue
        if tag["opener"]:
            nested += opened is not None
            opened = opened or tag
        elif opened:
            outside.append(text[done : opened.start()])
            blocks.append(text[opened.start() : tag.end()])
            done = tag.end()
            opened, nested, owed = None, 0, owed + nested
        elif every_closer or owed or not tag["word"]:
            ended.append("".join((*outside, text[done : tag.end()])))
            outside.clear()
            done = tag.end()
            owed = max(0, owed - 1)
    if not blocks:
        return text, []
    return "".join((*outside, text[done:])), blocks + ended


def _without_tags(text: str, patterns: _Patterns) -> str:
    return patterns.tag.sub(lambda tag: tag["quoted"] or "", text)


@lru_cache(maxsize=8)
def _patterns(tags: Tags) -> _Patterns:
    opener, closer = re.escape(tags.opener), re.escape(tags.closer)
    quoted = "|".join(_quoted(left, right, opener, closer) for left, right in QUOTES)
    # Inside a line: behind a word, and before another or the end of a clause.
    word = rf"(?<=[^\s>] ){closer}(?=[ .,;:!?)])"
    return _Patterns(
        tag=re.compile(
            f"(?P<quoted>{quoted})|(?P<opener>{opener})|(?P<word>{word})|{closer}", re.IGNORECASE
        ),
        opener_of_line=re.compile(rf"^[ \t]*{opener}", re.IGNORECASE | re.MULTILINE),
    )


def _quoted(left: str, right: str, opener: str, closer: str) -> str:
    """What stands in quotes on one line: a tag, a block, or words without any, so that a quote which ends is
    not taken for one that begins.
    """
    words = rf"(?:(?!{opener}|{closer})[^{left}{right}\n])*+"
    # From the first quote of a run on, so that a long run is looked at once.
    return rf"(?<!{left}){left}++(?:{opener}(?:{words}{closer})?|{closer}|{words}){right}++"
