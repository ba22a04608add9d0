"""Sampling parameters: every field's range, what is refused, and which requests share a bucket."""

from __future__ import annotations

import hashlib
import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from shared.errors import InvalidRequest
from shared.sampling import (
    INT32_MAX,
    MAX_STOP_CHARS,
    MAX_STOP_TOKEN_IDS,
    MAX_STOPS,
    SamplingParams,
)
from tests.shared.strategies import FIELDS, field_values, hostile_fields, params, valid_fields

ROOT = Path(__file__).resolve().parents[2]
HUGE = 10**5000
BAD_NUMBERS: tuple[Any, ...] = (
    math.nan,
    math.inf,
    -math.inf,
    HUGE,
    -HUGE,
    True,
    False,
    "1",
    [],
    {},
)
INTEGERS = ("max_tokens", "min_tokens", "top_k", "logprobs", "seed")
FLOATS = (
    "temperature",
    "top_p",
    "repetition_penalty",
    "frequency_penalty",
    "presence_penalty",
)

GOOD: list[tuple[str, Any]] = [
    ("max_tokens", 1),
    ("max_tokens", INT32_MAX),
    ("min_tokens", 0),
    ("min_tokens", 16),
    ("stop", "END"),
    ("stop", ["你好", "🦊"]),
    ("stop", ["x" * MAX_STOP_CHARS] * MAX_STOPS),
    ("stop_token_ids", [0, INT32_MAX]),
    ("stop_token_ids", list(range(MAX_STOP_TOKEN_IDS))),
    ("temperature", 0),
    ("temperature", 1e-9),
    ("temperature", 2),
    ("top_p", 1e-6),
    ("top_p", 1),
    ("top_k", -1),
    ("top_k", 0),
    ("top_k", 1),
    ("top_k", INT32_MAX),
    ("repetition_penalty", 0.5),
    ("repetition_penalty", 1e6),
    ("frequency_penalty", -2),
    ("frequency_penalty", 2),
    ("presence_penalty", -2.0),
    ("presence_penalty", 2.0),
    ("echo", True),
    ("skip_special_tokens", False),
    ("logprobs", 0),
    ("logprobs", 20),
    ("seed", -(2**63)),
    ("seed", 2**63 - 1),
    ("ignore_eos", True),
]
BAD: list[tuple[str, Any]] = [
    ("max_tokens", 0),
    ("max_tokens", -1),
    ("max_tokens", INT32_MAX + 1),
    ("max_tokens", 16.0),
    ("min_tokens", -1),
    ("min_tokens", 17),
    ("stop", ""),
    ("stop", ["a", ""]),
    ("stop", [1]),
    ("stop", [None]),
    ("stop", {"a": 1}),
    ("stop", 5),
    ("stop", ["a"] * (MAX_STOPS + 1)),
    ("stop", ["x" * (MAX_STOP_CHARS + 1)]),
    ("stop", ["\ud800"]),
    ("stop_token_ids", [-1]),
    ("stop_token_ids", [INT32_MAX + 1]),
    ("stop_token_ids", [HUGE]),
    ("stop_token_ids", [math.nan]),
    ("stop_token_ids", [True]),
    ("stop_token_ids", ["1"]),
    ("stop_token_ids", 5),
    ("stop_token_ids", list(range(MAX_STOP_TOKEN_IDS + 1))),
    ("temperature", -0.1),
    ("temperature", 2.01),
    ("top_p", 0),
    ("top_p", -0.1),
    ("top_p", 1.01),
    ("top_k", -2),
    ("top_k", INT32_MAX + 1),
    ("repetition_penalty", 0),
    ("repetition_penalty", -1),
    ("frequency_penalty", -2.1),
    ("frequency_penalty", 2.1),
    ("presence_penalty", -2.1),
    ("presence_penalty", 2.1),
    ("echo", 1),
    ("echo", "true"),
    ("skip_special_tokens", 0),
    ("logprobs", -1),
    ("logprobs", 21),
    ("logprobs", True),
    ("seed", 2**63),
    ("seed", -(2**63) - 1),
    ("seed", 1.0),
    ("ignore_eos", 1),
    *((name, value) for name in (*INTEGERS, *FLOATS) for value in BAD_NUMBERS),
]


def shown(value: Any) -> str:
    """Python prints no integer of over 4,300 digits."""
    return "huge" if value in (HUGE, -HUGE, [HUGE]) else ascii(value)[:30]


def from_dict(name: str, value: Any) -> SamplingParams:
    return SamplingParams.from_dict({"max_tokens": 16, name: value})


def test_the_tables_cover_every_field() -> None:
    assert {name for name, _ in GOOD} == set(FIELDS) == set(field_values)
    assert {name for name, _ in BAD} == set(FIELDS)


@pytest.mark.parametrize(("name", "value"), GOOD, ids=shown)
def test_a_value_in_range_is_taken(name: str, value: Any) -> None:
    taken = from_dict(name, value)
    as_set = {"stop": ("END",), "top_k": -1} if value in ("END", 0) else {}
    expected = tuple(value) if isinstance(value, list) else value
    assert getattr(taken, name) == as_set.get(name, expected)


@pytest.mark.parametrize(("name", "value"), BAD, ids=shown)
def test_a_value_out_of_range_is_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(InvalidRequest) as refused:
        from_dict(name, value)
    assert refused.value.param == name
    assert str(refused.value).startswith(f"{name}: ")
    assert len(str(refused.value)) < 200
    assert not refused.value.retryable


def test_max_tokens_is_required() -> None:
    for given_fields in ({}, {"max_tokens": None}, {"temperature": 0.5}):
        with pytest.raises(InvalidRequest, match="max_tokens: is required") as refused:
            SamplingParams.from_dict(given_fields)
        assert refused.value.param == "max_tokens"


def test_defaults_are_the_second_seeds() -> None:
    assert SamplingParams(max_tokens=16).to_dict() == {
        "max_tokens": 16,
        "min_tokens": 1,
        "temperature": 1.0,
        "top_p": 1.0,
        "top_k": -1,
        "repetition_penalty": 1.0,
        "frequency_penalty": 0.0,
        "presence_penalty": 0.0,
        "echo": False,
        "skip_special_tokens": True,
    }


@pytest.mark.parametrize("key", ["max_new_tokens", "", "Stop", "\ud800", "a\nb", "k" * 10_000])
def test_an_unknown_parameter_is_refused_by_name(key: str) -> None:
    with pytest.raises(InvalidRequest, match="is not a sampling parameter") as refused:
        SamplingParams.from_dict({"max_tokens": 16, key: 1})
    param = refused.value.param
    assert param is not None
    assert param == key or not key.isprintable() or key.startswith(param.removesuffix("..."))
    assert refused.value.message.encode().isascii()
    assert len(refused.value.message) < 120


def test_none_means_absent() -> None:
    nothing = dict.fromkeys(FIELDS, None) | {"max_tokens": 16}
    assert SamplingParams.from_dict(nothing) == SamplingParams(max_tokens=16)


def test_the_constructor_checks_as_well() -> None:
    with pytest.raises(InvalidRequest, match="temperature"):
        SamplingParams(max_tokens=16, temperature=math.nan)
    with pytest.raises(InvalidRequest, match="min_tokens"):
        SamplingParams(max_tokens=1, min_tokens=2)


def test_a_list_given_to_the_constructor_leaves_the_record_hashable() -> None:
    stops, ids = ["a"], [2, 1, 2]
    made = SamplingParams(max_tokens=16, stop=stops, stop_token_ids=ids)  # type: ignore[arg-type]
    stops.append("b")
    ids.clear()
    assert made == SamplingParams(max_tokens=16, stop=("a",), stop_token_ids=(2, 1))
    assert len({made, SamplingParams(max_tokens=16, stop=("a",), stop_token_ids=(2, 1))}) == 1


def test_one_stop_string_is_not_taken_apart() -> None:
    assert SamplingParams(max_tokens=16, stop="END").stop == ("END",)  # type: ignore[arg-type]


def test_nobody_can_change_the_record() -> None:
    with pytest.raises(AttributeError):
        SamplingParams(max_tokens=16).max_tokens = 17  # type: ignore[misc]


def test_what_is_nearly_greedy_is_greedy() -> None:
    assert SamplingParams(max_tokens=1, temperature=0).is_greedy
    assert SamplingParams(max_tokens=1, temperature=9e-6).is_greedy
    assert not SamplingParams(max_tokens=1, temperature=1e-5).is_greedy


def test_batch_key_holds_the_named_fields_alone() -> None:
    one = SamplingParams(max_tokens=16, temperature=0.5, stop=("a",))
    other = msgspec.structs.replace(one, max_tokens=64, stop=("b",))
    shared = frozenset({"temperature", "top_p"})
    assert one.batch_key(shared) == other.batch_key(shared)
    assert one.batch_key(frozenset({"stop"})) != other.batch_key(frozenset({"stop"}))
    assert one.batch_key(frozenset()) == ()


@given(params)
def test_round_trip_through_a_dict(made: SamplingParams) -> None:
    through_json = json.loads(json.dumps(made.to_dict()))
    again = SamplingParams.from_dict(through_json)
    assert again == made
    assert again.to_dict() == made.to_dict()
    assert again.bucket_key == made.bucket_key


@given(valid_fields(), valid_fields())
def test_equal_records_have_equal_hashes_and_keys(a: dict[str, Any], b: dict[str, Any]) -> None:
    one, again, other = SamplingParams(**a), SamplingParams.from_dict(a), SamplingParams(**b)
    assert one == again
    assert hash(one) == hash(again)
    assert one.bucket_key == again.bucket_key
    if one == other:
        assert hash(one) == hash(other)
        assert one.bucket_key == other.bucket_key


def taken_or_refused(fields: dict[str, Any]) -> SamplingParams | InvalidRequest:
    """Any other error is a failure of the test."""
    try:
        return SamplingParams.from_dict(fields)
    except InvalidRequest as error:
        return error


@given(hostile_fields())
@settings(max_examples=400)
def test_any_json_object_is_taken_or_refused_by_name(fields: dict[str, Any]) -> None:
    made = taken_or_refused(fields)
    if isinstance(made, InvalidRequest):
        assert made.param is not None
        assert made.message.startswith(f"{made.param}: ")
        assert json.dumps([made.message, made.param], ensure_ascii=False).encode()
    else:
        assert set(fields) <= set(FIELDS)
        assert len(made.bucket_key) == 16
        assert msgspec.msgpack.decode(msgspec.msgpack.encode(made), type=SamplingParams) == made


# --- which requests share a bucket


def engine_view(made: SamplingParams) -> dict[str, Any]:
    """What an engine can see of a request, told apart from how the key is computed."""
    view: dict[str, Any] = {name: getattr(made, name) for name in FIELDS}
    stops = list(dict.fromkeys(made.stop))
    can_tie = any(a != b and a.endswith(b) for a in stops for b in stops)
    view["stop"] = stops if can_tie else set(stops)
    view["stop_token_ids"] = set(made.stop_token_ids)
    if made.temperature < 1e-5:
        view["temperature"] = 0
        for name in ("top_p", "top_k", "seed"):
            del view[name]
    return view


@given(params, st.sampled_from(FIELDS), st.data())
@settings(max_examples=400)
def test_a_bucket_is_shared_exactly_where_an_engine_sees_no_difference(
    one: SamplingParams, name: str, data: st.DataObject
) -> None:
    other = msgspec.structs.replace(one, **{name: data.draw(field_values[name])})
    same = engine_view(one) == engine_view(other)
    assert (one.bucket_key == other.bucket_key) is same


@given(params)
def test_a_greedy_bucket_ignores_what_only_sampling_reads(one: SamplingParams) -> None:
    greedy = msgspec.structs.replace(one, temperature=0.0)
    other = msgspec.structs.replace(greedy, temperature=1e-9, top_p=0.5, top_k=7, seed=1)
    assert greedy.bucket_key == other.bucket_key
    sampled = msgspec.structs.replace(other, temperature=0.5)
    assert sampled.bucket_key != greedy.bucket_key


@given(params, params)
def test_different_greedy_requests_do_not_share(one: SamplingParams, other: SamplingParams) -> None:
    one, other = (msgspec.structs.replace(p, temperature=0.0) for p in (one, other))
    assume(engine_view(one) != engine_view(other))
    assert one.bucket_key != other.bucket_key


def test_seeds_that_differ_in_the_last_bit_do_not_share() -> None:
    """As doubles they would be equal."""
    one, other = (SamplingParams(max_tokens=16, seed=2**60 + i) for i in (0, 1))
    assert one.bucket_key != other.bucket_key


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ({}, {"temperature": 1}, True),
        ({}, {"temperature": 1.0, "top_k": 0, "frequency_penalty": -0.0}, True),
        ({}, {"stop": []}, True),
        ({}, {"min_tokens": 0}, False),
        ({"stop": ["a", "b"]}, {"stop": ["b", "a", "b"]}, True),
        ({"stop": ["ab", "b"]}, {"stop": ["b", "ab"]}, False),
        ({"stop": ["1"]}, {"stop_token_ids": [1]}, False),
        ({"stop": ["a,b"]}, {"stop": ["a", "b"]}, False),
        ({"stop_token_ids": [1, 2]}, {"stop_token_ids": [2, 1, 1]}, True),
        ({"logprobs": 0}, {}, False),
        ({"seed": 0}, {}, False),
    ],
)
def test_named_pairs(one: dict[str, Any], other: dict[str, Any], same: bool) -> None:
    a, b = (SamplingParams.from_dict({"max_tokens": 16, **fields}) for fields in (one, other))
    assert (a.bucket_key == b.bucket_key) is same


PINNED: list[dict[str, Any]] = [
    {"max_tokens": 16},
    {"max_tokens": 32, "min_tokens": 0, "temperature": 0, "repetition_penalty": 1.05},
    {
        "max_tokens": 512,
        "temperature": 0.7,
        "top_p": 0.9,
        "stop": ["\n\n", "你好🦊"],
        "seed": 2**60,
    },
]
PINNED_TEXTS = [
    '{"max_tokens":16}',
    '{"max_tokens":32,"min_tokens":0,"repetition_penalty":1.05,"temperature":0.0}',
    '{"max_tokens":512,"seed":1152921504606846976,"stop":["\\n\\n","你好🦊"],"temperature":0.7,"top_p":0.9}',
]
PINNED_KEYS = ["41235df73af04f93", "788d2cfedad799e3", "3affb9b35422a8b2"]


def test_keys_are_pinned() -> None:
    """They travel between processes of neighbouring releases: a change here is a new schema."""
    keys = [SamplingParams.from_dict(fields).bucket_key for fields in PINNED]
    assert keys == PINNED_KEYS
    digests = [hashlib.blake2b(text.encode(), digest_size=8).hexdigest() for text in PINNED_TEXTS]
    assert digests == PINNED_KEYS


@pytest.mark.parametrize("hash_seed", ["0", "4242"])
def test_keys_do_not_depend_on_the_process(hash_seed: str) -> None:
    program = (
        "import json, sys\n"
        "from shared.sampling import SamplingParams\n"
        "params = map(SamplingParams.from_dict, json.load(sys.stdin))\n"
        "print(json.dumps([p.bucket_key for p in params]))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        input=json.dumps(PINNED),
        cwd=ROOT,
        env={"PYTHONHASHSEED": hash_seed},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert json.loads(done.stdout) == PINNED_KEYS
