"""`docs/conformance.md` has every number of the list once or more, and names only files and tests that are there."""

from __future__ import annotations

import re

from tests.architecture.source_tree import ROOT
from tests.docs import pages

PAGE = pages.text("docs/conformance.md")
# How many numbers each part of the list has.
# fmt: off
PARTS = {
    "S1": 7, "E": 66, "R": 11, "PR": 10, "ST": 8, "P": 6, "SD": 6, "B": 3, "EN": 5, "FB": 9,
    "W": 8, "T": 8, "H": 9, "BM": 6, "L": 4, "X": 5, "Q": 29, "D": 37, "V": 18, "N": 6,
}
# fmt: on
NUMBER = re.compile(r"\b(S1|[A-Z]{1,2})-(\d\d)(?:(?: to |\.\.)(?:[A-Z]{1,2}-)?(\d\d))?")


def told() -> set[tuple[str, int]]:
    found = set()
    for cell in re.findall(r"^\| ([^|]+?) \|", PAGE, re.MULTILINE):
        for part, first, last in NUMBER.findall(cell):
            found |= {(part, n) for n in range(int(first), int(last or first) + 1)}
    return found


def test_every_number_is_told() -> None:
    wanted = {(part, n) for part, most in PARTS.items() for n in range(1, most + 1)}
    assert sorted(wanted - told()) == []


def test_the_files_that_are_named_are_there() -> None:
    named = set(re.findall(r"`(\w[\w./-]*/[\w./-]+)`", PAGE)) | set(
        re.findall(r"\b(tests/[\w/]+\.py)\b", PAGE)
    )
    assert [path for path in sorted(named) if not (ROOT / path).exists()] == []


def test_the_tests_that_are_named_are_there() -> None:
    text = "\n".join(path.read_text("utf-8") for path in (ROOT / "tests").rglob("test_*.py"))
    named = set(re.findall(r"`(test_\w+)`", PAGE))
    assert [name for name in sorted(named) if f"def {name}(" not in text] == []
