"""What a process does again and again for the queue, each step by itself: one that fails costs no other its turn."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable

from shared.errors import BrokerUnavailable

log = logging.getLogger(__name__)
TOLD_EVERY_S = 60.0


class Complaint:
    """A fault that may come again and again: logged with its traceback, once a minute at most."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._told_at = float("-inf")

    def tell(self) -> None:
        """From inside of an `except`."""
        now = time.monotonic()
        if now - self._told_at >= TOLD_EVERY_S:
            self._told_at = now
            log.exception("%s failed; it goes on", self._name)


class Step:
    """`name` stands in the log where it fails."""

    def __init__(self, name: str, run: Callable[[], Awaitable[object]]) -> None:
        self._name = name
        self._run = run
        self._complaint = Complaint(name)

    async def once(self) -> None:
        """Raises nothing but a cancellation. A broker that is away is waited for; its connection logs it."""
        try:
            await self._run()
        except BrokerUnavailable as error:
            log.debug("%s waits for the broker: %s", self._name, error)
        except Exception:
            self._complaint.tell()


async def keep(period_s: float, *steps: Step) -> None:
    """Until cancelled: the steps one after the other, then a pause."""
    while True:
        for step in steps:
            await step.once()
        await asyncio.sleep(period_s)
