"""Records to bytes and back: msgpack through msgspec, with a schema version; never pickle.

A version above ours is refused by name, since its meaning is not known here; unknown fields of our
own version are skipped, so that processes of neighbouring releases can share a queue.
"""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from shared.errors import CodecError
from shared.request import SCHEMA_VERSION, Body, Outcome, Record, Report, Req
from shared.worker_info import WorkerInfo

T = TypeVar("T")
_encoder = msgspec.msgpack.Encoder()
_req = msgspec.msgpack.Decoder(Req)
_record = msgspec.msgpack.Decoder(Record)
_outcome = msgspec.msgpack.Decoder(Outcome)
_body = msgspec.msgpack.Decoder(Body)
_info = msgspec.msgpack.Decoder(WorkerInfo)
_any = msgspec.msgpack.Decoder()


def encode(record: Req | Body | WorkerInfo) -> bytes:
    return _encoder.encode(record)


def pack(values: list[Any]) -> bytes:
    """A plain list for a script's argument. Text and numbers only: cmsgpack knows no bin type."""
    return _encoder.encode(values)


def unpack(raw: bytes) -> Any:
    """A script's packed reply; its strings are text."""
    return _decode(_any, raw, "reply")


def decode_req(raw: bytes) -> Req:
    req = _decode(_req, raw, "request")
    if req.v > SCHEMA_VERSION:
        raise CodecError(f"request of schema {req.v}; this process knows {SCHEMA_VERSION}", raw)
    return req


def decode_record(raw: bytes) -> Record:
    return _decode(_record, raw, "record")


def decode_outcome(raw: bytes) -> Outcome:
    return _decode(_outcome, raw, "outcome")


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
    except (msgspec.MsgspecError, UnicodeDecodeError, ValueError) as error:
        raise CodecError(f"not a {what}: {error}", raw) from error
