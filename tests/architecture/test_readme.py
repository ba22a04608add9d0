"""The README's file tree is the file tree: the top two levels, one line a file."""

from __future__ import annotations

import re

from tests.architecture.source_tree import ROOT, files

LINE = re.compile(r"( *)(\S+?)(?: {2,}(\S.*))?")


def in_readme() -> dict[str, str]:
    """Path to its line of text; a folder ends with a slash."""
    text = (ROOT / "README.md").read_text("utf-8")
    block = text.partition("```text\nsluice/\n")[2].partition("```")[0]
    found: dict[str, str] = {}
    folder = ""
    for line in block.splitlines():
        match = LINE.fullmatch(line)
        assert match is not None, line
        indent, name, meaning = match.groups()
        assert len(indent) in (2, 4), f"only two levels are shown: {line}"
        path = name if len(indent) == 2 else folder + name
        folder = name if len(indent) == 2 else folder
        assert path not in found, f"{path} is listed twice"
        found[path] = meaning or ""
    return found


def in_tree() -> set[str]:
    found = set()
    for path in files():
        first, *rest = path.split("/")
        if rest[-1:] == ["__init__.py"] and len(rest) == 1:
            continue
        found.add(first + "/" if rest else first)
        if rest:
            found.add(f"{first}/{rest[0]}" + ("/" if len(rest) > 1 else ""))
    return found


def test_the_tree_is_the_file_tree() -> None:
    shown, there = set(in_readme()), in_tree()
    assert sorted(there - shown) == [], "missing in the README"
    assert sorted(shown - there) == [], "in the README, and not there"


def test_every_line_says_something() -> None:
    assert [path for path, meaning in in_readme().items() if len(meaning) < 5] == []
