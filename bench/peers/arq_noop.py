"""arq by its public API: a pool that enqueues, a job that is polled for, a worker that polls.

`python -m bench.peers.arq_noop POLL_S` is the worker. Runs in arq's own environment.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from bench.settings import peer_broker

JOBS = 100
RESULT_S = 60
WAIT_S = 20.0


async def no_op(_: dict[str, Any], text: str) -> str:
    return text


@asynccontextmanager
async def asker(poll_s: float) -> AsyncIterator[Callable[[object], Awaitable[object]]]:
    from arq import create_pool
    from arq.connections import RedisSettings

    pool = await create_pool(RedisSettings.from_dsn(peer_broker()))

    async def ask(_: object) -> object:
        job = await pool.enqueue_job("no_op", "no-op")
        return await job.result(timeout=WAIT_S, poll_delay=poll_s)

    try:
        yield ask
    finally:
        await pool.aclose()


async def work(poll_s: float) -> None:
    """Until a signal comes. `max_jobs` is 10 by default, which would hold back more than that in flight."""
    from arq.connections import RedisSettings
    from arq.worker import Worker

    worker = Worker(
        functions=[no_op],
        redis_settings=RedisSettings.from_dsn(peer_broker()),
        max_jobs=JOBS,
        poll_delay=poll_s,
        keep_result=RESULT_S,
        log_results=False,
    )
    try:
        await worker.async_run()
    finally:
        await worker.close()


def main() -> None:
    import uvloop

    uvloop.run(work(float(sys.argv[1])))


if __name__ == "__main__":
    main()
