"""`docs/faults.md` has every fault of the catalogue, and the tests that it names are there."""

from __future__ import annotations

import ast
import re

from tests.architecture.source_tree import ROOT, files
from tests.docs import pages

PAGE = "docs/faults.md"
FAULTS = 70


def rows() -> list[list[str]]:
    """Cells of every table row that is not a head."""
    lines = [line for line in pages.text(PAGE).splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return [row for row in cells if row[0] not in ("#", "what is done") and set(row[0]) != {"-"}]


def test_every_fault_has_one_row() -> None:
    numbers = [int(row[0]) for row in rows() if row[0].isdigit()]
    assert sorted(numbers) == list(range(1, FAULTS + 1))


def test_every_row_says_what_is_done_what_follows_and_where() -> None:
    for row in rows():
        assert all(len(cell) > 8 for cell in row[-3:]), row
        assert "`tests/" in row[-1], row


def test_every_named_test_is_there() -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", pages.text(PAGE))
    assert len(named) >= FAULTS
    there = {path: names_in(path) for path, _ in named}
    missing = [f"{path}::{name}" for path, name in named if name not in there[path]]
    assert not missing


def names_in(path: str) -> set[str]:
    assert path in files(), path
    tree = ast.parse((ROOT / path).read_text("utf-8"))
    found = (ast.FunctionDef, ast.AsyncFunctionDef)
    return {node.name for node in tree.body if isinstance(node, found)}
