"""Trimming of short answers: when there is none, and properties; the recorded cases are among the vectors."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from shared.postprocess import STRIP_ONLY, cap_sentences, cut_examples, postprocess
from shared.request import Trim


def test_no_trim_leaves_even_the_white_space() -> None:
    assert postprocess("  as it came \n", None) == "  as it came \n"
    assert postprocess("  as it came \n", STRIP_ONLY) == "as it came"
    assert postprocess(None, None) == ""


@given(st.text("一。！ \na例如：", max_size=60), st.integers(1, 12))
def test_the_cap_only_shortens_and_keeps_what_stands(text: str, most: int) -> None:
    capped = cap_sentences(text, most)
    assert capped in text
    assert sum(bool(piece.strip()) for piece in _pieces(capped)) <= most


@given(st.text("一。！ \na例如：:", max_size=60))
def test_cutting_examples_never_empties_an_answer(text: str) -> None:
    cut = cut_examples(text)
    assert text.startswith(cut)
    assert bool(cut) == bool(text)


@given(st.text("一。！ \na例如：:", max_size=60))
def test_trimming_twice_is_trimming_once(text: str) -> None:
    trim = Trim(cut_examples=True, max_sentences=3)
    once = postprocess(text, trim)
    assert postprocess(once, Trim(cut_examples=False, max_sentences=3)) == once


def _pieces(text: str) -> list[str]:
    for mark in "。！？；":
        text = text.replace(mark, mark + "\n")
    return text.split("\n")
