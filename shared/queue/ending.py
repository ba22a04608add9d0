"""Ending a request from outside its worker: peek to learn who owns it, then end it with those keys declared.

Used by cancel (the front door) and by the housekeeper (expired and dead requests, unfinished lists).
"""

from __future__ import annotations

import asyncio

from shared import codec
from shared.queue.line import Line
from shared.queue.scripts import Scripts
from shared.queue.transitions import moved
from shared.status import RECORD_STATES, ReqStatus

INLINE_MAX = 1024
CHUNK = 64


async def end_one(
    line: Line,
    scripts: Scripts,
    rid: str,
    how: str,
    ttl_ms: int,
    *,
    code: str = "",
    message: str = "",
) -> bool:
    """`how` is cancel, expire or dead. Whether this call ended it; False if it was not live or not due."""
    while True:
        _, kind, value, *_ = await line.run(scripts.peek(rid))
        if kind != b"live":
            return False
        record = codec.decode_record(value)
        reply = await line.run(
            scripts.end(rid, how, code, message, record.worker, ttl_ms, record.apis, record.parent)
        )
        if reply[0] == b"OK":
            to = ReqStatus.CANCELLED if how == "cancel" else ReqStatus.ERROR
            moved(rid, RECORD_STATES[reply[1].decode()], to, code or how)
            for api in reply[3:]:
                await line.run(scripts.notify(record.parent or rid, api.decode(), INLINE_MAX))
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
    line: Line, scripts: Scripts, parent: str, n: int, code: str, message: str, ttl_ms: int
) -> None:
    """The children that were never submitted, then each of the `n` that lives. Twice is as once."""
    await end_missing(line, scripts, parent, "C", code, ttl_ms)
    for start in range(0, n, CHUNK):
        await asyncio.gather(
            *(
                end_one(
                    line, scripts, f"{parent}.{i}", "cancel", ttl_ms, code=code, message=message
                )
                for i in range(start, min(start + CHUNK, n))
            )
        )
