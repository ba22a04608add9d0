"""Every Lua script is a file with a header, and reaches no key that it does not declare."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from shared.queue.loader import NAMES, load
from tests.docs.script_reference import BEGIN, END, FIELDS, LUA, PAGE, header, reference

SCRIPTS = [LUA / f"{name}.lua" for name in NAMES]


def pieces(path: Path) -> list[str]:
    """Names of the shared texts that the loader puts in front of a script."""
    return header(path)["USES"].split()


def test_every_file_is_a_script_with_a_face_or_a_piece_of_one() -> None:
    used = {piece for path in SCRIPTS for piece in pieces(path)}
    assert {path.stem for path in LUA.glob("*.lua")} == set(NAMES) | used
    assert not set(NAMES) & used


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda p: p.stem)
def test_a_script_has_a_header(path: Path) -> None:
    fields = header(path)
    assert path.stem in fields, "the first line names the script"
    for name in FIELDS:
        assert fields.get(name), f"{name} is missing"
    flags = fields["FLAGS"].split()
    assert flags[0] in ("allow-oom", "deny-oom")
    assert set(flags[1:]) <= {"no-writes"}


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda p: p.stem)
def test_keys_are_declared_and_never_built(path: Path) -> None:
    texts = [path, *(LUA / f"{piece}.lua" for piece in pieces(path))]
    for text in texts:
        assert not re.search(r"['\"]sl:", text.read_text("utf-8")), f"{text.name} builds a key"
    fixed = header(path)["KEYS"].partition("|")[0].split()
    declared = {f"K_{name.replace(':', '_')}" for name in fixed}
    used = set(re.findall(r"\bK_\w+\b", path.read_text("utf-8")))
    assert used <= declared, f"not declared: {sorted(used - declared)}"


def test_a_piece_goes_by_the_keys_that_it_is_given() -> None:
    """Several runs of a script may be one command: its `KEYS` are then another run's as well."""
    for name in {piece for path in SCRIPTS for piece in pieces(path)}:
        assert "KEYS[" not in (LUA / f"{name}.lua").read_text("utf-8"), name


def test_scripts_that_free_or_renew_work_at_full_memory() -> None:
    """What brings in more is refused by a full broker; what finishes, cancels, renews or ticks is not."""
    refused_when_full = {p.stem for p in SCRIPTS if header(p)["FLAGS"].startswith("deny-oom")}
    submits = {"submit", "reserve", "submit_many", "requeue_letter"}
    assert refused_when_full == submits | {"set_prompt", "emit"}


def test_the_docs_say_what_the_headers_say() -> None:
    """Otherwise: `python -m tests.docs.script_reference`."""
    written = PAGE.read_text("utf-8").partition(BEGIN)[2].partition(END)[0]
    assert written == reference()


def code_of(name: str) -> str:
    """What the server is given, without comments and strings."""
    text = re.sub(r"--.*", "", load(name).source)
    return re.sub(r"'[^'\n]*'", "''", text)


@pytest.mark.parametrize("name", NAMES)
def test_a_loaded_script_names_nothing_that_it_lacks(name: str) -> None:
    """What the loader leaves out is what nobody uses; and a mistyped key would be nil."""
    code = code_of(name)
    locals_ = {
        word
        for line in re.findall(r"\blocal (?:function )?([\w, ]+)", code)
        for word in re.findall(r"\w+", line)
    }
    called = set(re.findall(r"(?<![.\w:])([A-Za-z_]\w*)\s*\(", code))
    params = {
        word
        for line in re.findall(r"function\s*\w*\(([\w, ]*)\)", code)
        for word in line.split(", ")
    }
    known = {"pcall", "tonumber", "tostring", "type", "unpack", "ipairs", "pairs", "next", "select"}
    words = {"function", "if", "while", "until", "and", "or", "not", "return", "elseif", "in"}
    assert called - words <= known | locals_ | params


def test_a_piece_names_keys_that_there_are() -> None:
    fixed = {key for path in SCRIPTS for key in header(path)["KEYS"].partition("|")[0].split()}
    declared = {f"K_{key.replace(':', '_')}" for key in fixed}
    for piece in {piece for path in SCRIPTS for piece in pieces(path)}:
        code = re.sub(r"--.*", "", (LUA / f"{piece}.lua").read_text("utf-8"))
        assert set(re.findall(r"\bK_\w+", code)) <= declared, piece
