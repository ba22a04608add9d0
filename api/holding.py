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
    """Wait for a watched id, and stop watching it. Raises what `wait` raises, but for TimeoutError.

    The client's leaving is seen by `receive`, the only way in ASGI.
    """
    loop = asyncio.get_running_loop()
    gone = loop.create_task(_until_gone(request))
    try:
        async with asyncio.timeout(wait_s) as limit:

            def let_go(_: asyncio.Future[None]) -> None:
                try:
                    limit.reschedule(loop.time())
                except RuntimeError:
                    pass  # the wait ended in this same turn of the loop

            gone.add_done_callback(let_go)
            drain.over.add_done_callback(let_go)
            try:
                # Its own limit never comes first: one time-out, moved to now when somebody must go.
                return await producer.wait(rid, wait_s + 60)
            finally:
                gone.remove_done_callback(let_go)
                drain.over.remove_done_callback(let_go)
    except TimeoutError:
        if gone.done():
            return LetGo.client_gone
        return LetGo.draining if drain.over.done() else LetGo.timed_out
    finally:
        gone.cancel()
        producer.unwatch(rid)


async def _until_gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
