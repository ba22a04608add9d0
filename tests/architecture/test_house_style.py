"""The rules of style that a program can check."""

from __future__ import annotations

import ast
import re

import pytest

from tests.architecture.source_tree import ROOT, files, modules

VAGUE = {"utils", "util", "helpers", "helper", "misc", "common", "tools", "base_utils"}
MOST_LINES = 420
# Spelled in two pieces, so that this file passes its own check.
UNFINISHED = re.compile(r"\b(TO" + r"DO|FIX" + r"ME|X" + r"XX)\b")


def test_a_file_is_a_noun() -> None:
    vague = [path for path in files() if set(path.lower().replace(".", "/").split("/")) & VAGUE]
    assert not vague


def test_every_module_says_what_it_owns() -> None:
    silent = [str(m) for m in modules() if m.tree.body and not ast.get_docstring(m.tree)]
    assert not silent


def test_files_stay_small() -> None:
    long = {
        str(module): lines
        for module in modules()
        if (lines := len((ROOT / module.path).read_text().splitlines())) > MOST_LINES
    }
    assert not long


@pytest.mark.parametrize("ending", [".py", ".lua", ".md", ".yml", ".toml", ".sh", ".Dockerfile"])
def test_nothing_is_left_unfinished(ending: str) -> None:
    marked = [
        path
        for path in files()
        if path.endswith(ending) and UNFINISHED.search((ROOT / path).read_text("utf-8"))
    ]
    assert not marked


def test_no_path_of_one_machine_is_written_down() -> None:
    home = re.compile(r"/(home|Users)/(?!sluice\b)[a-z][\w-]*/")
    marked = [
        path
        for path in files()
        if path.endswith((".py", ".md", ".yml", ".toml", ".sh", "Makefile"))
        and home.search((ROOT / path).read_text("utf-8"))
    ]
    assert not marked
