"""Lines of state: plain output prints what changed, once."""

from __future__ import annotations

import io

import pytest

from cli.board import Board, state_line, style_of


def test_plain_output_has_one_line_for_each_change() -> None:
    out = io.StringIO()
    with Board(out) as board:
        board.set("broker", "starting…")
        board.set("broker", "starting…")
        board.set("worker-1", "loading… 1 s")
        board.set("worker-1", "loading… 2 s")
        board.set("broker", "ready")
        board.note("all [ready]")
    assert out.getvalue().splitlines() == [
        "broker    starting…",
        "worker-1  loading… 1 s",
        "broker    ready",
        "all [ready]",
    ]


def test_a_long_line_is_not_broken() -> None:
    out = io.StringIO()
    with Board(out) as board:
        board.set("worker-1", "died (" + "x" * 300 + ")")
    assert len(out.getvalue().splitlines()) == 1


def test_names_are_set_in_one_column() -> None:
    assert state_line("api", "ready") == "api       ready"


@pytest.mark.parametrize(
    ("text", "style"),
    [
        ("ready  http://127.0.0.1:8000", "green"),
        ("died (exit code 1)", "red"),
        ("loading…", "yellow"),
        ("stopped", "dim"),
        ("", "yellow"),
    ],
)
def test_the_first_word_gives_the_colour(text: str, style: str) -> None:
    assert style_of(text) == style
