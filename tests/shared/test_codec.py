"""Records to bytes and back, and what happens to bytes that are none of ours."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from shared import codec
from shared.errors import CodecError
from shared.request import SCHEMA_VERSION, Body, Outcome, Record, Report, Req, Usage
from shared.status import ReqStatus
from shared.worker_info import WorkerInfo, WorkerState
from tests.shared.records import (
    bodies,
    outcome,
    outcomes,
    plain_json,
    record,
    records,
    reports,
    reqs,
    worker_infos,
)

pack = msgspec.msgpack.encode
DECODERS: list[Callable[[bytes], Any]] = [
    codec.decode_req,
    codec.decode_record,
    codec.decode_outcome,
    codec.decode_body,
    codec.decode_worker_info,
    codec.unpack,
]
RECORD_DECODERS = DECODERS[:5]
REQ: dict[str, Any] = {
    "id": "default.0-abc",
    "sampling": {"max_tokens": 4},
    "bucket_key": "k",
    "digest": "d",
    "v": SCHEMA_VERSION,
}
GARBAGE = [
    b"",
    b"\xc1",
    b"\xff" * 40,
    b"\xa5abc",
    b"\xa3\xff\xfe\xfd",
    b"\xdd\xff\xff\xff\xff",
    b"\xdf\xff\xff\xff\xff",
    b"\xc6\xff\xff\xff\xff",
    b"\x91" * 50_000,
    b"\x81\xa1a" * 50_000,
    b'{"id": "json"}',
    pickle.dumps({"id": "x"}),
]


@given(reqs)
def test_a_request_comes_back_as_it_was(req: Req) -> None:
    again = codec.decode_req(codec.encode(req))
    assert again == req
    assert again.sampling.bucket_key == req.sampling.bucket_key
    assert type(again.priority) is type(req.priority)


@given(bodies)
def test_a_body_comes_back_as_it_was(body: Body) -> None:
    assert codec.decode_body(codec.encode(body)) == body


@given(worker_infos)
def test_a_worker_info_comes_back_as_it_was(info: WorkerInfo) -> None:
    assert codec.decode_worker_info(codec.encode(info)) == info


@given(records)
def test_a_record_comes_back_as_it_was(made: Record) -> None:
    again = codec.decode_record(pack(made))
    assert again == made
    assert again.status in (ReqStatus.PENDING, ReqStatus.RUNNING)


@given(outcomes, reports)
def test_an_outcome_comes_back_as_it_was(made: Outcome, report: Report) -> None:
    made = msgspec.structs.replace(made, report_json=codec.encode_report(report))
    again = codec.decode_outcome(pack(made))
    assert again == made
    assert again.report == report
    assert again.status.is_final


@given(st.lists(plain_json, max_size=4))
def test_a_list_for_a_script_comes_back_as_it_was(values: list[Any]) -> None:
    assert codec.unpack(codec.pack(values)) == values


def test_the_scripts_order_of_fields_is_kept() -> None:
    """Lua reads these arrays by number, so a field can only be added at the end."""
    assert msgspec.msgpack.decode(pack(record()))[:6] == [1, "Q", "1-0", 1, "anonymous", 40]
    assert msgspec.msgpack.decode(pack(outcome()))[:7] == [1, "F", "", "", "w1", "1-1", 0]
    assert len(msgspec.msgpack.decode(pack(record()))) == 28
    assert len(msgspec.msgpack.decode(pack(outcome()))) == 19


# --- what is no record


@pytest.mark.parametrize("decode", DECODERS, ids=lambda d: d.__name__)
@pytest.mark.parametrize("raw", GARBAGE, ids=lambda raw: raw[:6].hex() or "empty")
def test_garbage_is_a_codec_error_that_keeps_the_bytes(
    decode: Callable[[bytes], Any], raw: bytes
) -> None:
    with pytest.raises(CodecError) as bad:
        decode(raw)
    assert bad.value.raw == raw
    assert bad.value.code == "bad_record"


def refusal(decode: Callable[[bytes], Any], raw: bytes) -> CodecError | None:
    """Any other error is a failure of the test."""
    try:
        decode(raw)
    except CodecError as error:
        return error
    return None


@given(st.binary(max_size=60))
@example(pack({"id": "x", "state": "ready"}))
def test_any_bytes_decode_or_are_a_codec_error(raw: bytes) -> None:
    for decode in DECODERS:
        refused = refusal(decode, raw)
        assert refused is None or refused.raw == raw


@given(reqs, st.data())
def test_a_damaged_request_decodes_or_is_a_codec_error(req: Req, data: st.DataObject) -> None:
    whole = codec.encode(req)
    at = data.draw(st.integers(0, len(whole) - 1))
    byte = data.draw(st.integers(0, 255))
    for raw in (whole[:at], whole[:at] + bytes([byte]) + whole[at + 1 :]):
        refused = refusal(codec.decode_req, raw)
        assert refused is None or refused.raw == raw


@pytest.mark.parametrize(
    "change",
    [
        {"id": None},
        {"id": 5},
        {"priority": 9},
        {"sampling": {}},
        {"sampling": {"max_tokens": 0}},
        {"sampling": {"max_tokens": 4, "temperature": float("nan")}},
        {"sampling": {"max_tokens": 4, "stop": [""]}},
        {"on_worker_loss": "explode"},
        {"v": "1"},
    ],
    ids=str,
)
def test_a_request_with_a_bad_field_is_a_codec_error(change: dict[str, Any]) -> None:
    raw = pack({**REQ, **change})
    with pytest.raises(CodecError, match="not a request") as bad:
        codec.decode_req(raw)
    assert bad.value.raw == raw


@pytest.mark.parametrize("name", ["id", "sampling", "bucket_key", "digest"])
def test_a_request_without_a_required_field_is_a_codec_error(name: str) -> None:
    raw = pack({key: value for key, value in REQ.items() if key != name})
    with pytest.raises(CodecError, match=name):
        codec.decode_req(raw)


# --- neighbouring releases


def test_the_version_is_in_the_bytes() -> None:
    """Left out as a default, it would be read as the reader's own."""
    raw = codec.encode(codec.decode_req(pack(REQ)))
    assert msgspec.msgpack.decode(raw)["v"] == SCHEMA_VERSION


def test_unknown_fields_are_skipped() -> None:
    later = {**REQ, "sampling": {"max_tokens": 4, "min_p": 0.5}, "colour": {"deep": [1, 2]}}
    assert codec.decode_req(pack(later)) == codec.decode_req(pack(REQ))
    info = {"id": "w1", "state": "ready", "colour": 1}
    assert codec.decode_worker_info(pack(info)) == WorkerInfo(id="w1", state=WorkerState.READY)
    assert codec.decode_body(pack({"text": "a", "colour": 1})) == Body(text="a")
    longer = [*msgspec.to_builtins(record()), "later", {"deep": 1}]
    assert codec.decode_record(pack(longer)) == record()
    assert codec.decode_outcome(pack([*msgspec.to_builtins(outcome()), 1])) == outcome()


@pytest.mark.parametrize("v", [SCHEMA_VERSION + 1, 99, 2**63])
def test_a_newer_schema_is_refused_by_name(v: int) -> None:
    newer = {"id": ["now", "a", "list"], "v": v}
    tail = msgspec.to_builtins(record())[1:]
    for decode, kind, made in (
        (codec.decode_req, "request", {**REQ, "v": v}),
        (codec.decode_req, "request", newer),
        (codec.decode_record, "record", [v, *tail]),
        (codec.decode_record, "record", [v, {"now": "another"}]),
        (codec.decode_outcome, "outcome", [v, *msgspec.to_builtins(outcome())[1:]]),
        (codec.decode_outcome, "outcome", [v]),
    ):
        raw = pack(made)
        with pytest.raises(CodecError) as bad:
            decode(raw)
        known = f"this process knows {SCHEMA_VERSION}"
        assert str(bad.value) == f"{kind} of schema {v}; {known}"
        assert bad.value.raw == raw


# --- never code


class _Trap:
    fired = False

    def __reduce__(self) -> tuple[Any, ...]:
        return _spring, ()


def _spring() -> None:
    _Trap.fired = True


def test_a_pickle_is_bytes_like_any_other() -> None:
    raw = pickle.dumps(_Trap())
    for decode in RECORD_DECODERS:
        with pytest.raises(CodecError):
            decode(raw)
    assert not _Trap.fired


def test_a_report_is_json_text() -> None:
    assert codec.encode_report(Report(usage=Usage(completion_tokens=2), engine="vllm")) == (
        '{"usage":{"completion_tokens":2},"engine":"vllm"}'
    )
