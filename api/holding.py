"""Holds a caller's connection until there is an answer or a reason to let go. Knows ids, not bodies."""

from __future__ import annotations

import asyncio
from enum import Enum

from starlette.requests import Request

from api.drain import Drain
from shared.queue.producer import Producer
from shared.queue.waiters import Answer


class LetGo(Enum):
    """Why there is no answer yet. The request itself goes on; what becomes of it is the caller's rule."""

    timed_out = "timed_out"
    client_gone = "client_gone"
    draining = "draining"


async def hold(
    request: Request, producer: Producer, drain: Drain, rid: str, wait_s: float
) -> Answer | LetGo:
    """Wait for a watched id, and stop watching it. Raises BrokerLost.

    The client's leaving is seen by `receive`, the only way in ASGI.
    """
    answer = asyncio.ensure_future(producer.wait(rid, wait_s))
    gone = asyncio.ensure_future(_until_gone(request))
    try:
        await asyncio.wait((answer, gone, drain.over), return_when=asyncio.FIRST_COMPLETED)
        if answer.done():
            try:
                return answer.result()
            except TimeoutError:
                return LetGo.timed_out
        return LetGo.client_gone if gone.done() else LetGo.draining
    finally:
        answer.cancel()
        gone.cancel()
        producer.unwatch(rid)


async def _until_gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
