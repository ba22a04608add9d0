"""Ending a request from outside its worker: peek to learn who owns it, then end it with those keys declared.

Used by cancel (the front door) and by the housekeeper (expired and dead requests, unfinished lists).
"""

from __future__ import annotations

import asyncio

import msgspec

from shared import codec
from shared.errors import CodecError
from shared.queue.line import Line
from shared.queue.scripts import Scripts
from shared.queue.transitions import moved
from shared.request import parent_of
from shared.settings import QueueSettings
from shared.status import RECORD_STATES, ReqStatus

INLINE_MAX = 1024
CHUNK = 64


class Kept(msgspec.Struct, frozen=True):
    """What remains of a request after its end: for how long its outcome and its answer, how much of the dead."""

    record_ms: int
    body_ms: int
    letters_max_bytes: int

    @classmethod
    def of(cls, settings: QueueSettings) -> Kept:
        return cls(
            int(settings.result_record_ttl_s * 1000),
            int(settings.result_body_ttl_s * 1000),
            settings.dead_letters_max_bytes,
        )


async def end_one(
    line: Line,
    scripts: Scripts,
    rid: str,
    how: str,
    kept: Kept,
    *,
    code: str = "",
    message: str = "",
) -> bool:
    """`how` is cancel, expire or dead. Whether this call ended it; False if it was not live or not due."""
    while True:
        _, kind, value, *_ = await line.run(scripts.peek(rid))
        if kind != b"live":
            return False
        cause = code or how
        try:
            known = codec.decode_record(value)
            worker, apis, parent = known.worker, known.apis, known.parent
            if how == "dead" and known.events:
                cause = known.events[-1].detail  # of which the script makes the end's code
        except CodecError:
            # Its id is all that can be told: the script ends it as bad_record, but for a later release's.
            how, worker, apis, parent = "bad", "", [], parent_of(rid) or ""
            cause = "bad_record"
        reply = await line.run(
            scripts.end(
                rid,
                how,
                code,
                message,
                worker,
                kept.record_ms,
                apis,
                parent,
                part_ttl_ms=kept.body_ms,
                letters_max_bytes=kept.letters_max_bytes,
            )
        )
        if reply[0] == b"OK":
            is_cancelled = how == "cancel" or cause == "client_gone"
            to = ReqStatus.CANCELLED if is_cancelled else ReqStatus.ERROR
            moved(rid, RECORD_STATES[reply[1].decode()], to, cause)
            for api in reply[3:]:
                await line.run(scripts.notify(parent or rid, api.decode(), INLINE_MAX))
            return True
        if reply[0] != b"KEYS":
            return False


async def end_missing(
    line: Line, scripts: Scripts, parent: str, state: str, code: str, ttl_ms: int
) -> None:
    """End those children of a list that were never submitted; `state` C also marks the list cancelled."""
    while True:
        _, kind, value, *_ = await line.run(scripts.peek(parent))
        if kind != b"group":
            return
        group = {value[i].decode(): value[i + 1] for i in range(0, len(value), 2)}
        start, n = int(group["submitted"]), int(group["n"])
        apis = [api for api in group["apis"].decode().split(",") if api]
        count = min(CHUNK, n - start)
        reply = await line.run(scripts.end_missing(parent, state, code, start, count, ttl_ms, apis))
        if reply[0] in (b"GONE", b"NOTDUE"):
            return
        if reply[0] == b"OK":
            for i in range(start, start + count):
                moved(f"{parent}.{i}", None, RECORD_STATES[state], code)
            for api in reply[3:]:
                await line.run(scripts.notify(parent, api.decode(), INLINE_MAX))
            if int(reply[1]) >= n:
                return


async def cancel_list(
    line: Line, scripts: Scripts, parent: str, n: int, code: str, message: str, kept: Kept
) -> None:
    """The children that were never submitted, then each of the `n` that lives. Twice is as once."""
    await end_missing(line, scripts, parent, "C", code, kept.record_ms)
    for start in range(0, n, CHUNK):
        await asyncio.gather(
            *(
                end_one(line, scripts, f"{parent}.{i}", "cancel", kept, code=code, message=message)
                for i in range(start, min(start + CHUNK, n))
            )
        )
