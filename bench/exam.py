"""The questions of `bench.seed`, out of `exam.toml`: short ones as in an exam, English and Chinese, of every route,
always the same and in the same mixed order.
"""

from __future__ import annotations

import random
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

FORMS = Path(__file__).with_name("exam.toml")
PLACE = "{}"
ORDER = 92  # of the shuffle


@dataclass(frozen=True)
class Question:
    """`route` as the front door's defaults decide it. `echo`: what a right answer names, and no other question's
    answer does; None where nothing is that sure.
    """

    text: str
    route: str
    echo: str | None


def questions() -> list[Question]:
    """All, mixed: neighbours share neither form nor route but by chance."""
    forms = tomllib.loads(FORMS.read_text("utf-8"))["form"]
    found = [
        Question(
            form["text"].replace(PLACE, topic),
            form["route"],
            topic if form.get("is_echo") else None,
        )
        for form in forms
        for topic in form["topics"]
    ]
    random.Random(ORDER).shuffle(found)
    return found


def papers(sizes: Sequence[int]) -> Iterator[list[Question]]:
    """Lists of these sizes with no question in two of them. Raises ValueError where there are too few."""
    left = questions()
    for size in sizes:
        if size > len(left):
            raise ValueError(f"there are only {len(left)} questions left for a list of {size}")
        yield left[:size]
        left = left[size:]
