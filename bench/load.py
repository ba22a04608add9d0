"""A closed loop: so many requests in flight at every moment until all are answered. Knows nothing of what is asked."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

Item = TypeVar("Item")
Reply = TypeVar("Reply")


@dataclass(frozen=True)
class Run(Generic[Reply]):
    """`latencies_s` and `replies` in the order in which the answers came."""

    seconds: float
    latencies_s: list[float]
    replies: list[Reply]

    @property
    def per_s(self) -> float:
        return len(self.replies) / self.seconds


def joined(runs: Sequence[Run[Reply]]) -> Run[Reply]:
    """Several turns of the same load as one."""
    return Run(
        sum(run.seconds for run in runs),
        [latency for run in runs for latency in run.latencies_s],
        [reply for run in runs for reply in run.replies],
    )


def for_seconds(seconds: float) -> Iterator[int]:
    """Numbers from 0 for so long: a turn that takes the same time on every machine."""
    began = time.perf_counter()
    number = 0
    while time.perf_counter() - began < seconds:
        yield number
        number += 1


async def closed_loop(
    items: Iterable[Item], in_flight: int, ask: Callable[[Item], Awaitable[Reply]]
) -> Run[Reply]:
    """Raises the first error of an `ask`, after the others in flight were stopped."""
    waiting = iter(items)
    latencies: list[float] = []
    replies: list[Reply] = []
    began = time.perf_counter()
    try:
        async with asyncio.TaskGroup() as clients:
            for _ in range(in_flight):
                clients.create_task(_client(waiting, ask, latencies, replies))
    except ExceptionGroup as group:
        raise group.exceptions[0] from None
    return Run(time.perf_counter() - began, latencies, replies)


async def _client(
    waiting: Iterator[Item],
    ask: Callable[[Item], Awaitable[Reply]],
    latencies: list[float],
    replies: list[Reply],
) -> None:
    for item in waiting:
        began = time.perf_counter()
        reply = await ask(item)
        latencies.append(time.perf_counter() - began)
        replies.append(reply)
