"""What is wanted against what came."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tests.vectors.comparison import exact, partial, spelled_out, with_types
from tests.vectors.vector import Vector

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=8,
)


@given(JSON, JSON)
def test_equal_values_differ_nowhere_and_others_somewhere(one: Any, other: Any) -> None:
    assert exact(one, one) == []
    assert partial(one, one) == []
    if json.dumps(one, sort_keys=True) != json.dumps(other, sort_keys=True):
        assert exact(one, other)


def test_a_partial_output_leaves_other_keys_free_and_lists_whole() -> None:
    assert partial({"a": [{"b": 1}]}, {"a": [{"b": 1, "c": 2}], "d": 3}) == []
    assert partial({"a": [1]}, {"a": [1, 2]})
    assert partial({"a": None}, {})
    assert exact({"a": 1}, {"a": 1, "d": 3})
    assert exact(1, True)


def test_what_stands_for_a_value_matches_values_of_its_kind() -> None:
    assert with_types({"n": "int", "t": "str"}, {"n": 3, "t": "x"}) == {"n": 3, "t": "x"}
    assert with_types({"n": "int"}, {"n": "x"}) == {"n": "int"}
    digest = {"len": 12, "first": "abbbb", "last": "bbbbc"}
    text = spelled_out(digest)
    assert text == "abbbbbbbbbbc"
    assert with_types(digest, text) == text
    assert with_types(digest, text + "c") == digest


def test_a_vector_without_its_own_right_output_wants_the_recorded_one() -> None:
    vector = Vector("n", "g", "f", {}, {}, "out", "quirk", right="better")
    assert vector.wanted == "out"
