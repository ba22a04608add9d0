"""What hypothesis draws for the tests of `shared`: valid sampling parameters, and any JSON."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from shared.sampling import SamplingParams

FIELDS = SamplingParams.__struct_fields__

# A few letters, so that one string often ends or begins another, and characters of several bytes.
stop_strings = st.text("ab\n你🦊", min_size=1, max_size=4)

field_values: dict[str, SearchStrategy[Any]] = {
    "max_tokens": st.integers(20, 4096) | st.just(2**31 - 1),
    "min_tokens": st.integers(0, 20),
    "stop": st.lists(stop_strings, max_size=4).map(tuple),
    "stop_token_ids": st.lists(st.integers(0, 2**31 - 1), max_size=4).map(tuple),
    "temperature": st.sampled_from([0, 0.0, -0.0, 1e-9, 0.7, 1, 1.0, 2]) | st.floats(0, 2),
    "top_p": st.floats(0, 1, exclude_min=True),
    "top_k": st.sampled_from([-1, 0, 1, 50, 2**31 - 1]),
    "repetition_penalty": st.floats(0, 1e6, exclude_min=True),
    "frequency_penalty": st.sampled_from([0, -0.0, 1]) | st.floats(-2, 2),
    "presence_penalty": st.floats(-2, 2),
    "echo": st.booleans(),
    "skip_special_tokens": st.booleans(),
    "logprobs": st.none() | st.integers(0, 20),
    "seed": st.none() | st.integers(-(2**63), 2**63 - 1),
    "ignore_eos": st.booleans(),
}


def valid_fields() -> SearchStrategy[dict[str, Any]]:
    required = {"max_tokens": field_values["max_tokens"]}
    optional = {name: drawn for name, drawn in field_values.items() if name != "max_tokens"}
    return st.fixed_dictionaries(required, optional=optional)


params = valid_fields().map(lambda fields: SamplingParams(**fields))

json_values: SearchStrategy[Any] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.sampled_from([2**31, 2**63, 2**64, 10**400, -(10**400)])
    | st.floats()
    | st.text(st.characters(exclude_categories=()), max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=6,
)


def hostile_fields() -> SearchStrategy[dict[str, Any]]:
    """JSON objects that mostly name real fields, with values good and bad."""
    names = st.sampled_from(FIELDS) | st.text(st.characters(exclude_categories=()), max_size=4)
    anything = st.dictionaries(names, json_values, max_size=5)
    one_bad = st.builds(
        lambda fields, name, value: {**fields, name: value}, valid_fields(), names, json_values
    )
    return anything | one_bad
