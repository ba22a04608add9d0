"""taskiq by its public API: its stream broker with acknowledgements, and its Redis result backend, which is polled.

`taskiq worker bench.peers.taskiq_noop:broker` is the worker. Runs in taskiq's own environment.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from bench.settings import peer_broker

RESULT_S = 60
WAIT_S = 20.0
NAME = "no_op"


async def no_op(text: str) -> str:
    return text


def broker() -> Any:
    """The factory that taskiq's command line calls."""
    from taskiq_redis import RedisAsyncResultBackend, RedisStreamBroker

    url = peer_broker()
    results: Any = RedisAsyncResultBackend(redis_url=url, result_ex_time=RESULT_S)
    made = RedisStreamBroker(url=url).with_result_backend(results)
    made.register_task(no_op, task_name=NAME)
    return made


@asynccontextmanager
async def asker(poll_s: float) -> AsyncIterator[Callable[[object], Awaitable[object]]]:
    made = broker()
    task = made.find_task(NAME)
    await made.startup()

    async def ask(_: object) -> object:
        sent = await task.kiq("no-op")
        result = await sent.wait_result(check_interval=poll_s, timeout=WAIT_S)
        return result.return_value

    try:
        yield ask
    finally:
        await made.shutdown()
