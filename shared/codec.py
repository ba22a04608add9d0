"""Records to bytes and back: msgpack through msgspec, with a schema version; never pickle.

A version above ours is refused by name, since its meaning is not known here; unknown fields of our
own version are skipped, so that processes of neighbouring releases can share a queue.
"""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from shared.errors import CodecError, SluiceError
from shared.request import SCHEMA_VERSION, Body, Outcome, Record, Report, Req
from shared.worker_info import WorkerInfo


class _NamedVersion(msgspec.Struct):
    v: int


class _FirstVersion(msgspec.Struct, array_like=True):
    v: int


T = TypeVar("T")
V = TypeVar("V", Req, Record, Outcome)
_encoder = msgspec.msgpack.Encoder()
_req = msgspec.msgpack.Decoder(Req)
_record = msgspec.msgpack.Decoder(Record)
_outcome = msgspec.msgpack.Decoder(Outcome)
_body = msgspec.msgpack.Decoder(Body)
_info = msgspec.msgpack.Decoder(WorkerInfo)
_any = msgspec.msgpack.Decoder()
_named_version = msgspec.msgpack.Decoder(_NamedVersion)
_first_version = msgspec.msgpack.Decoder(_FirstVersion)


def encode(record: Req | Body | WorkerInfo) -> bytes:
    return _encoder.encode(record)


def pack(values: list[Any]) -> bytes:
    """A plain list for a script's argument. Text and numbers only: cmsgpack knows no bin type."""
    return _encoder.encode(values)


def unpack(raw: bytes) -> Any:
    """A script's packed reply; its strings are text."""
    return _decode(_any, raw, "reply")


def decode_req(raw: bytes) -> Req:
    return _decode_versioned(_req, _named_version, raw, "request")


def decode_record(raw: bytes) -> Record:
    return _decode_versioned(_record, _first_version, raw, "record")


def decode_outcome(raw: bytes) -> Outcome:
    return _decode_versioned(_outcome, _first_version, raw, "outcome")


def decode_body(raw: bytes) -> Body:
    return _decode(_body, raw, "body")


def decode_worker_info(raw: bytes) -> WorkerInfo:
    return _decode(_info, raw, "worker info")


def encode_report(report: Report) -> str:
    """JSON, because it is kept as text inside a record that Lua packs."""
    return msgspec.json.encode(report).decode()


def _decode(decoder: msgspec.msgpack.Decoder[T], raw: bytes, what: str) -> T:
    try:
        return decoder.decode(raw)
    except (msgspec.MsgspecError, ValueError, RecursionError, SluiceError) as error:
        # SluiceError: well-formed, and yet no sampling parameters of ours.
        raise CodecError(f"not a {what}: {error}", raw) from error


def _decode_versioned(
    decoder: msgspec.msgpack.Decoder[V],
    version: msgspec.msgpack.Decoder[_NamedVersion] | msgspec.msgpack.Decoder[_FirstVersion],
    raw: bytes,
    what: str,
) -> V:
    try:
        record = _decode(decoder, raw, what)
    except CodecError:
        # A field may have got another type since; then its version tells more than our complaint.
        try:
            found = version.decode(raw).v
        except (msgspec.MsgspecError, ValueError, RecursionError):
            found = SCHEMA_VERSION
        if found > SCHEMA_VERSION:
            raise _too_new(what, found, raw) from None
        raise
    if record.v > SCHEMA_VERSION:
        raise _too_new(what, record.v, raw)
    return record


def _too_new(what: str, version: int, raw: bytes) -> CodecError:
    return CodecError(f"{what} of schema {version}; this process knows {SCHEMA_VERSION}", raw)
