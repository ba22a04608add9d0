"""Who waits for what in one API process: ids to futures. No I/O; the producer delivers into it."""

from __future__ import annotations

import asyncio
import logging

import msgspec

from shared.errors import SluiceError
from shared.queue.scripts import Call
from shared.request import Body, Outcome, short

log = logging.getLogger(__name__)


class Answer(msgspec.Struct, frozen=True):
    """`body` is None where there is none: not finished, expired, dropped, or a list's own outcome."""

    id: str
    outcome: Outcome
    body: Body | None

    def __repr__(self) -> str:
        length = len(self.body.text) if self.body else None
        status = self.outcome.status.value
        return f"Answer(id={short(self.id)}, status={status}, output_len={length})"


class Waiter:
    """`resubmit` is the call that made the request, kept to make it again should the broker lose it.
    Until `is_submitted` the broker is not asked for it: it may not have got there yet.
    """

    __slots__ = ("checked_at", "future", "is_submitted", "readers", "resubmit", "waiting")

    def __init__(self, resubmit: Call | None, loop: asyncio.AbstractEventLoop) -> None:
        self.future: asyncio.Future[Answer] = loop.create_future()
        self.readers = 0
        self.resubmit = resubmit
        self.checked_at = loop.time()
        self.is_submitted = False
        self.waiting: set[asyncio.Future[Answer]] = set()

    async def wait(self, timeout_s: float) -> Answer:
        """The answer. Raises TimeoutError, and what the waiter failed with.

        Each caller has a future of its own, so that one that leaves does not take the others' along: cheaper than
        `asyncio.shield` under `asyncio.timeout`, since every request passes here.
        """
        if self.future.done():
            return self.future.result()
        loop = self.future.get_loop()
        own: asyncio.Future[Answer] = loop.create_future()
        self.waiting.add(own)
        limit = loop.call_later(timeout_s, _time_out, own)
        try:
            return await own
        finally:
            limit.cancel()
            self.waiting.discard(own)

    def end(self, answer: Answer | SluiceError) -> None:
        """Once: for all who wait, and all who come later."""
        for future in (self.future, *self.waiting):
            if future.done():
                continue
            if isinstance(answer, SluiceError):
                future.set_exception(answer)
            else:
                future.set_result(answer)
        if isinstance(answer, SluiceError):
            self.future.exception()  # where nobody waits yet it is no fault that nobody hears of it


def _time_out(future: asyncio.Future[Answer]) -> None:
    if not future.done():
        future.set_exception(TimeoutError())


class Watched:
    """`with` this: the waiter stays, unless what is done inside fails."""

    __slots__ = ("_rid", "_waiter", "_waiters")

    def __init__(self, waiters: Waiters, rid: str, resubmit: Call | None) -> None:
        self._waiters = waiters
        self._rid = rid
        self._waiter = waiters.add(rid, resubmit)

    def __enter__(self) -> Waiter:
        return self._waiter

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self._waiters.remove(self._rid)


class Waiters:
    """Several readers of one id share a future; the last to leave takes the entry with it."""

    def __init__(self) -> None:
        self._by_id: dict[str, Waiter] = {}
        self._over: SluiceError | None = None

    def __len__(self) -> int:
        return len(self._by_id)

    def __contains__(self, rid: str) -> bool:
        return rid in self._by_id

    def add(self, rid: str, resubmit: Call | None = None) -> Waiter:
        waiter = self._by_id.get(rid)
        if waiter is None:
            waiter = Waiter(resubmit, asyncio.get_running_loop())
            self._by_id[rid] = waiter
            if self._over is not None:
                self.fail(rid, self._over)
        waiter.readers += 1
        return waiter

    def mark_submitted(self, rid: str) -> None:
        waiter = self._by_id.get(rid)
        if waiter is not None:
            waiter.is_submitted = True

    def get(self, rid: str) -> Waiter | None:
        return self._by_id.get(rid)

    def remove(self, rid: str) -> None:
        waiter = self._by_id.get(rid)
        if waiter is None:
            return
        waiter.readers -= 1
        if waiter.readers <= 0:
            del self._by_id[rid]

    def deliver(self, answer: Answer) -> None:
        """The first answer stands; a second one (after a failover) is only logged."""
        waiter = self._by_id.get(answer.id)
        if waiter is None:
            return
        if waiter.future.done():
            log.debug("a second result for %s is not delivered", answer.id)
            return
        waiter.end(answer)

    def fail(self, rid: str, error: SluiceError) -> None:
        waiter = self._by_id.get(rid)
        if waiter is not None and not waiter.future.done():
            waiter.end(error)

    def fail_all(self, error: SluiceError) -> None:
        """For good: whoever has no answer yet, and whoever comes later, gets the error."""
        self._over = error
        for rid in list(self._by_id):
            self.fail(rid, error)

    def overdue(self, now: float, age_s: float) -> list[tuple[str, Waiter]]:
        """Submitted ones without an answer that were not looked up for `age_s` seconds."""
        return [
            (rid, waiter)
            for rid, waiter in self._by_id.items()
            if waiter.is_submitted and not waiter.future.done() and now - waiter.checked_at >= age_s
        ]
