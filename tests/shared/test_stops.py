"""Stop strings in a stream: where they end it, and what is shown before."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from shared.errors import InvalidRequest
from shared.stops import Fed, StopMatcher, StopTable
from tests.shared.strategies import stop_strings

# Few letters, so that matches, halves of matches and overlaps are common.
letters = "ab\n你🦊"
texts = st.text(letters, max_size=24)
stop_lists = st.lists(stop_strings, max_size=5)


def expected(
    pieces: Sequence[str], stops: Sequence[str], min_tokens: int = 0, include: bool = False
) -> tuple[str, str | None]:
    """The rules on the whole text, without haste: text and stop. A piece is a token."""
    text = "".join(pieces)
    deaf = len("".join(pieces[:min_tokens]))
    for end in range(deaf + 1, len(text) + 1):
        for stop in stops:
            if text[:end].endswith(stop):
                return text[: end if include else end - len(stop)], stop
    return text, None


def run(
    pieces: Sequence[str], stops: Sequence[str] | StopTable, **rules: Any
) -> tuple[str, str | None]:
    matcher = StopMatcher(stops, **rules)
    shown = ""
    stop = None
    for piece in pieces:
        text, stop = matcher.feed(piece)
        shown += text
        if stop is not None:
            break
    return shown + matcher.flush(), stop


CASES: list[tuple[str, list[str], str, str | None]] = [
    ("no stop here", [], "no stop here", None),
    ("no stop here", ["END"], "no stop here", None),
    ("", ["END"], "", None),
    ("END", ["END"], "", "END"),
    ("answerENDmore", ["END"], "answer", "END"),
    ("EENDx", ["END"], "E", "END"),
    ("ENEND", ["END"], "EN", "END"),
    ("aaab", ["aab"], "a", "aab"),
    ("one\n\ntwo", ["\n\n"], "one", "\n\n"),
    ("one\n", ["\n\n"], "one\n", None),
    ("aXbY", ["Y", "X"], "a", "X"),
    ("foobar", ["foobar", "bar"], "", "foobar"),
    ("foobar", ["bar", "foobar"], "foo", "bar"),
    ("foobaz", ["foobar", "ba"], "foo", "ba"),
    ("foobar", ["foobarx", "oba"], "fo", "oba"),
    ("abcd", ["abcde", "bcd", "c"], "ab", "c"),
    ("abab", ["abc", "abab"], "", "abab"),
    ("dup", ["u", "u"], "d", "u"),
    ("答案是四十二。结束", ["结束"], "答案是四十二。", "结束"),
    ("好🦊🦊🛑吗", ["🦊🛑"], "好🦊", "🦊🛑"),
    ("👩‍👩‍👧x", ["‍👧"], "👩‍👩", "‍👧"),
    ("cafe\u0301!", ["\u0301!"], "cafe", "\u0301!"),
    ("hi<|im_end|>", ["<|im_end|>", "<|endoftext|>"], "hi", "<|im_end|>"),
    ("hi<|im_", ["<|im_end|>", "<|endoftext|>"], "hi<|im_", None),
]


@pytest.mark.parametrize(("text", "stops", "shown", "stop"), CASES)
@pytest.mark.parametrize("include", [False, True])
def test_every_split_gives_the_same(
    text: str, stops: list[str], shown: str, stop: str | None, include: bool
) -> None:
    whole = (shown + (stop or "") if include else shown, stop)
    assert expected([text], stops, include=include) == whole
    table = StopTable(stops)
    for i in range(len(text) + 1):
        for j in range(i, len(text) + 1):
            pieces = [text[:i], text[i:j], text[j:]]
            assert run(pieces, table, include=include) == whole
    assert run(list(text), table, include=include) == whole


@given(texts, stop_lists, st.lists(st.integers(0, 24), max_size=6), st.booleans())
@settings(max_examples=500)
def test_any_text_any_stops_any_split(
    text: str, stops: list[str], cuts: list[int], include: bool
) -> None:
    edges = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    pieces = [text[a:b] for a, b in pairwise(edges)]
    assert "".join(pieces) == text
    whole = expected([text], stops, include=include)
    assert run(pieces, stops, include=include) == whole
    assert run(list(text), stops, include=include) == whole


@given(st.lists(st.text(letters, max_size=4), max_size=8), stop_lists, st.integers(0, 6))
@settings(max_examples=500)
@example(["ab", "a"], ["aba"], 1)
@example(["ab", "", "b"], ["ab", "bb"], 2)
def test_early_matches_are_passed_over(
    tokens: list[str], stops: list[str], min_tokens: int
) -> None:
    assert run(tokens, stops, min_tokens=min_tokens) == expected(tokens, stops, min_tokens)


@given(st.lists(st.text(letters, max_size=4), max_size=6), stop_lists, st.integers(0, 4))
def test_a_token_in_several_pieces_counts_once(
    tokens: list[str], stops: list[str], min_tokens: int
) -> None:
    matcher = StopMatcher(stops, min_tokens=min_tokens)
    shown, stop = "", None
    for token in tokens:
        for place, char in enumerate(token or [""]):
            text, stop = matcher.feed(char, n_tokens=0 if place else 1)
            shown += text
    assert (shown + matcher.flush(), stop) == expected(tokens, stops, min_tokens)


# --- what is shown when


@given(texts, stop_lists)
@settings(max_examples=300)
def test_what_is_held_back_is_what_may_become_a_stop(text: str, stops: list[str]) -> None:
    matcher = StopMatcher(stops)
    shown = ""
    for place, char in enumerate(text, 1):
        fed = matcher.feed(char)
        shown += fed.text
        if fed.stop is not None:
            return
        held = text[len(shown) : place]
        assert shown + held == text[:place]
        assert len(held) <= max(map(len, stops), default=1) - 1
        assert not held or any(s.startswith(held) and s != held for s in stops)
        longer = [text[:place][-n:] for n in range(len(held) + 1, place + 1)]
        assert not any(s.startswith(end) and s != end for s in stops for end in longer)


def test_a_harmless_piece_is_shown_at_once() -> None:
    matcher = StopMatcher(["<|im_end|>"])
    assert matcher.feed("The capital") == Fed("The capital", None)
    assert matcher.feed(" <|im") == Fed(" ", None)
    assert matcher.feed("age|>") == Fed("<|image|>", None)
    assert matcher.flush() == ""


def test_with_include_nothing_is_held_back() -> None:
    matcher = StopMatcher(["END"], include=True)
    assert matcher.feed("aEN") == Fed("aEN", None)
    assert matcher.feed("Dx") == Fed("D", "END")


def test_after_the_stop_nothing_more_comes() -> None:
    matcher = StopMatcher(["END"])
    assert matcher.feed("aENDb") == Fed("a", "END")
    assert matcher.feed("cEND") == Fed("", "END")
    assert matcher.flush() == ""


def test_the_end_gives_out_what_was_held() -> None:
    matcher = StopMatcher(["END"])
    assert matcher.feed("aEN") == Fed("a", None)
    assert matcher.flush() == "EN"
    assert matcher.flush() == ""


def test_an_early_match_is_shown_and_may_grow_into_a_late_one() -> None:
    matcher = StopMatcher(["END", "ENDED"], min_tokens=1)
    assert matcher.feed("END") == Fed("", None)
    assert matcher.feed("ED") == Fed("", "ENDED")
    matcher = StopMatcher(["END"], min_tokens=1)
    assert matcher.feed("END") == Fed("END", None)
    assert matcher.feed("END") == Fed("", "END")


def test_more_than_min_tokens_are_wanted() -> None:
    for min_tokens, stop in ((0, "b"), (1, "b"), (2, None), (3, None)):
        assert run(["a", "b"], ["b"], min_tokens=min_tokens)[1] == stop
    matcher = StopMatcher(["b"], min_tokens=3)
    assert matcher.feed("ab", n_tokens=3) == Fed("ab", None)
    assert matcher.feed("ab", n_tokens=3) == Fed("a", "b")


def test_one_table_serves_many_requests() -> None:
    table = StopTable(["END"])
    one, other = StopMatcher(table), StopMatcher(table)
    assert one.feed("EN") == Fed("", None)
    assert other.feed("D") == Fed("D", None)
    assert one.feed("D") == Fed("", "END")
    assert other.feed("END") == Fed("", "END")


@pytest.mark.parametrize("stops", [[""], ["a", ""]])
def test_an_empty_stop_string_is_refused(stops: list[str]) -> None:
    with pytest.raises(InvalidRequest) as refused:
        StopMatcher(stops)
    assert refused.value.param == "stop"
