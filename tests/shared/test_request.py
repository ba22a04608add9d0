"""Request ids and the small records around a request."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.errors import CodecError
from shared.request import (
    REQUEST_ID,
    SCHEMA_VERSION,
    Delivery,
    FinishReason,
    Priority,
    Report,
    Req,
    Trim,
    Usage,
    child_index,
    decode_delivery,
    parent_of,
    queue_and_shard,
)
from shared.sampling import SamplingParams
from tests.shared.records import outcome

PARENT = "default.0-01j8zq4k7x3m5n6p7q8r9s0t1v"
HOSTILE = [
    "",
    ".",
    "..",
    "...",
    "default",
    "default.0",
    "default.0-",
    ".0-abc",
    "default.-abc",
    "default.x-abc",
    "default.-1-abc",
    "default.00000-abc",
    "default.0-abc.",
    "default.0-abc.x",
    "default.0-abc.-1",
    "default.0-abc.1_0",
    "default.0-abc. 1",
    "default.0-abc.1.2",
    "default.0-abc.1234567",
    "default.0-abc.١",
    "default.²-abc",
    "default.0-abc\n",
    "\ndefault.0-abc",
    "default.0-abc\x00",
    "Default.0-abc",
    "default.0-ABC",
    "default.0-ab c",
    "default.0-a_c",
    "default.0-{abc}",
    "default.0-../../etc",
    "d" * 33 + ".0-abc",
    "default.0-" + "a" * 65,
    "def ault.0-abc",
    "default:0-abc",
    "ｄefault.0-abc",
    "\ud800.0-abc",
    "a" * 100_000,
    "default.0-abc" * 10_000,
]


def made(request_id: str) -> Req:
    sampling = SamplingParams(max_tokens=1)
    return Req(id=request_id, sampling=sampling, bucket_key=sampling.bucket_key, digest="d")


def test_an_id_tells_where_it_lives() -> None:
    assert queue_and_shard(PARENT) == ("default", 0)
    assert queue_and_shard(f"{PARENT}.12") == ("default", 0)
    assert queue_and_shard("qwen3-4b.17-abc") == ("qwen3-4b", 17)
    assert queue_and_shard("-.9999-a") == ("-", 9999)


def test_a_child_knows_its_parent_and_place() -> None:
    child = f"{PARENT}.12"
    assert (parent_of(child), child_index(child)) == (PARENT, 12)
    assert (parent_of(PARENT), child_index(PARENT)) == (None, None)
    assert made(child).parent == PARENT
    assert made(PARENT).parent is None
    assert child_index(f"{PARENT}.999999") == 999_999


@pytest.mark.parametrize("text", HOSTILE, ids=lambda t: ascii(t)[:40])
def test_what_is_no_id_of_ours_is_nowhere_and_nobodys_child(text: str) -> None:
    assert queue_and_shard(text) is None
    assert parent_of(text) is None
    assert child_index(text) is None


@given(st.text(st.sampled_from("a9-.١_ \n\x00A:{}\ud800"), max_size=20) | st.text(max_size=20))
def test_any_text_is_an_id_or_nothing(text: str) -> None:
    where = queue_and_shard(text)
    if where is None:
        assert (parent_of(text), child_index(text)) == (None, None)
    else:
        queue, shard = where
        assert text.startswith(f"{queue}.")
        assert 0 <= shard <= 9999
        parent = parent_of(text)
        assert (parent is None) is (child_index(text) is None)
        assert parent is None or (parent_of(parent) is None and queue_and_shard(parent) == where)


@given(
    st.from_regex(r"[a-z0-9-]{1,32}", fullmatch=True),
    st.integers(0, 9999),
    st.from_regex(r"[a-z0-9]{1,64}", fullmatch=True),
    st.none() | st.integers(0, 999_999),
)
def test_every_id_that_we_make_is_read_back(
    queue: str, shard: int, key: str, index: int | None
) -> None:
    parent = f"{queue}.{shard}-{key}"
    request_id = parent if index is None else f"{parent}.{index}"
    assert queue_and_shard(request_id) == (queue, shard)
    assert child_index(request_id) == index
    assert parent_of(request_id) == (None if index is None else parent)


def test_no_character_of_an_id_means_something_in_a_key_or_a_path() -> None:
    every = [chr(code) for code in range(0x10000)]
    in_key = {char for char in every if REQUEST_ID.fullmatch(f"q.0-{char}")}
    in_queue = {char for char in every if REQUEST_ID.fullmatch(f"{char}.0-a")}
    assert in_key == set("abcdefghijklmnopqrstuvwxyz0123456789")
    assert in_queue == in_key | {"-"}


def test_a_request_carries_the_schema_version() -> None:
    assert made(PARENT).v == SCHEMA_VERSION


def test_lower_priorities_go_first() -> None:
    assert [(p.name, p.value) for p in Priority] == [
        ("interactive", 0),
        ("standard", 1),
        ("batch", 2),
    ]


def test_usage_adds_up() -> None:
    assert Usage(prompt_tokens=3, completion_tokens=4, cached_tokens=2).total_tokens == 7


def test_an_outcome_reads_its_report_and_delivery() -> None:
    full = outcome(
        report_json='{"finish_reason":"length","usage":{"completion_tokens":3},"later_field":1}',
        delivery_json='{"trim":{"cut_examples":true,"max_sentences":2},"metadata":{"a":[1]}}',
    )
    assert full.report == Report(
        finish_reason=FinishReason.length, usage=Usage(completion_tokens=3)
    )
    assert full.delivery == Delivery(trim=Trim(True, 2), metadata={"a": [1]})
    empty = outcome(report_json="", delivery_json="")
    assert (empty.report, empty.delivery) == (Report(), Delivery())


@pytest.mark.parametrize("text", ["{", "[]", '{"trim":1}', "[" * 10_000, "\ud800"])
def test_a_broken_delivery_or_report_is_a_bad_record(text: str) -> None:
    with pytest.raises(CodecError) as bad:
        decode_delivery(text)
    assert bad.value.raw == text.encode("utf-8", "surrogatepass")
    with pytest.raises(CodecError, match="not a report"):
        _ = outcome(report_json=text if text != '{"trim":1}' else '{"usage":1}').report
