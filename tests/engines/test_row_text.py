"""Text from tokens with the real tokenizer: characters over several tokens, stops over token borders."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from worker.engines.row_text import RowText, stop_table

TEXT = "Zürich 你好 🦉 — naïve café, and plain words."


@pytest.fixture(scope="module")
def decode(tokenizer: Any) -> Callable[[Sequence[int]], str]:
    return lambda ids: str(tokenizer.decode(ids, skip_special_tokens=True))


def test_characters_of_several_tokens_come_whole(tokenizer: Any, decode: Any) -> None:
    row = RowText(decode, stop_table(()))
    shown = []
    for token_id in tokenizer.encode(TEXT):
        row.add(token_id)
        shown.append(row.take())
    row.end()
    assert "".join([*shown, row.take()]) == TEXT
    assert not any("\ufffd" in part for part in shown)
    assert len([part for part in shown if part]) > 10


def test_bytes_that_never_become_a_character_are_shown_at_the_end(
    tokenizer: Any, decode: Any
) -> None:
    row = RowText(decode, stop_table(()))
    for token_id in tokenizer.encode("🦉")[:-1]:
        row.add(token_id)
    assert row.take() == ""
    row.end()
    assert row.take() == "\ufffd"


@pytest.mark.parametrize("at", range(4, len(TEXT) - 3))
def test_a_stop_string_anywhere_ends_the_text_before_it(
    tokenizer: Any, decode: Any, at: int
) -> None:
    stop = TEXT[at : at + 3]
    row = RowText(decode, stop_table(("never", stop)))
    found = None
    for token_id in tokenizer.encode(TEXT):
        found = row.add(token_id)
        if found is not None:
            break
    assert found == stop
    assert row.take() == TEXT[: TEXT.index(stop)]


def test_a_stop_string_within_the_least_tokens_is_passed_over(tokenizer: Any, decode: Any) -> None:
    ids = tokenizer.encode("one two one two")
    row = RowText(decode, stop_table(("two",)), min_tokens=2)
    stops = [row.add(token_id) for token_id in ids]
    assert stops.index("two") == 3
    assert row.take() == "one two one "


def test_the_token_that_ends_a_row_counts_and_is_not_shown(tokenizer: Any, decode: Any) -> None:
    row = RowText(decode, stop_table(("words",)))
    for token_id in tokenizer.encode("plain wor"):
        row.add(token_id)
    row.end(2)
    assert row.take() == "plain wor"
    assert row.ids[-1] == 2
