"""The connection on which every script call of a process travels: pipelined, timed, sent again where that helps.

Each script is safe to run twice, so what was not answered is simply sent again on the next connection. Knows
no keys and no scripts' meaning. The library's own retries are off: they would multiply each time-out.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import Any

import redis.asyncio as aioredis
from redis.exceptions import ResponseError

from shared.errors import BrokerUnavailable
from shared.queue.scripts import Call
from shared.queue.wire import Backoff, Command, Wire, is_passing

log = logging.getLogger(__name__)

REPLY_S = 1.2
CHECK_S = 0.1
BATCH_CALLS = 128
BATCH_BYTES = 4 << 20


class _Entry:
    """A call under way. `is_loaded`: its script was sent along, so another NOSCRIPT is an error."""

    __slots__ = ("call", "deadline", "future", "is_loaded", "sent_at")

    def __init__(self, call: Call | Command, deadline: float, future: asyncio.Future[Any]) -> None:
        self.call = call
        self.deadline = deadline
        self.future = future
        self.sent_at = 0.0
        self.is_loaded = False

    @property
    def command(self) -> Command:
        return self.call.command if isinstance(self.call, Call) else self.call

    @property
    def size(self) -> int:
        """Near enough: the payloads among its arguments, in bytes."""
        args = self.call.args if isinstance(self.call, Call) else self.call
        return sum(len(arg) for arg in args if isinstance(arg, bytes))


class Line:
    """Calls made in the same turn of the loop share one write; replies are handed out as they come.

    A caller that is cancelled leaves its call running: a script in flight is never cut.
    """

    def __init__(
        self, pool: aioredis.ConnectionPool, budget_s: float, what: str = "commands"
    ) -> None:
        self._pool = pool
        self._budget_s = budget_s
        self._backoff = Backoff(what)
        self._wire: Wire | None = None
        self._waiting: deque[_Entry] = deque()  # not sent
        self._sent: deque[_Entry] = deque()  # not answered
        self._opening: asyncio.Task[None] | None = None
        self._making_room: asyncio.Task[None] | None = None
        self._check_due: asyncio.TimerHandle | None = None
        self._is_flush_due = False
        self.is_up = False

    async def run(self, call: Call | Command, *, patient: bool = False) -> Any:
        """The reply. `patient` waits for as long as it takes; else BrokerUnavailable after the budget."""
        return await self.send(call, patient=patient)

    def send(self, call: Call | Command, *, patient: bool = False) -> asyncio.Future[Any]:
        """As `run`, for who must not lose the reply when cancelled: shield it."""
        loop = asyncio.get_running_loop()
        deadline = float("inf") if patient else loop.time() + self._budget_s
        future = loop.create_future()
        self._waiting.append(_Entry(call, deadline, future))
        if not self._is_flush_due:
            self._is_flush_due = True
            loop.call_soon(self._flush)
        return future

    async def close(self) -> None:
        tasks = [task for task in (self._opening, self._making_room) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._opening = self._making_room = None
        if self._check_due is not None:
            self._check_due.cancel()
            self._check_due = None
        if self._wire is not None:
            self._wire.close()
            self._wire = None
        for entry in (*self._sent, *self._waiting):
            _fail(entry, BrokerUnavailable("the connection was closed"))
        self._sent.clear()
        self._waiting.clear()

    # --- sending

    def _flush(self) -> None:
        self._is_flush_due = False
        loop = asyncio.get_running_loop()
        if self._check_due is None and (self._waiting or self._sent):
            self._check_due = loop.call_later(CHECK_S, self._check)
        if self._wire is None:
            if self._opening is None and self._waiting:
                self._opening = loop.create_task(self._open(0.0), name="broker-connect")
            return
        now = loop.time()
        while self._waiting and self._wire.has_room:
            batch = self._take()
            for entry in batch:
                entry.sent_at = now
            self._sent.extend(batch)
            self._wire.send([entry.command for entry in batch])
        if self._waiting and self._making_room is None:
            # A large payload that the broker does not take in: the rest waits here, within its budgets.
            self._making_room = loop.create_task(self._go_on(self._wire))

    async def _go_on(self, wire: Wire) -> None:
        await wire.room()
        self._making_room = None
        self._flush()

    def _take(self) -> list[_Entry]:
        batch: list[_Entry] = []
        size = 0
        while self._waiting and len(batch) < BATCH_CALLS and size < BATCH_BYTES:
            entry = self._waiting.popleft()
            if entry.future.done():
                continue
            batch.append(entry)
            size += entry.size
        return batch

    # --- replies

    def _on_reply(self, reply: Any) -> None:
        entry = self._sent.popleft()
        if isinstance(reply, ResponseError):
            self._on_error(entry, reply)
            return
        self._backoff.clear()
        self.is_up = True
        if not entry.future.done():
            entry.future.set_result(reply)

    def _on_error(self, entry: _Entry, error: ResponseError) -> None:
        if is_passing(error):
            self._sent.appendleft(entry)
            self._on_lost(error)
        elif str(error).startswith("NOSCRIPT") and not entry.is_loaded and self._wire is not None:
            self._load(entry, self._wire)
        else:
            _fail(entry, error)

    def _load(self, entry: _Entry, wire: Wire) -> None:
        """Send the script, then the call again."""
        assert isinstance(entry.call, Call)
        nobody: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        nobody.cancel()
        loading = _Entry(entry.call.load_command, entry.deadline, nobody)
        loading.sent_at = entry.sent_at = asyncio.get_running_loop().time()
        entry.is_loaded = True
        self._sent.extend((loading, entry))
        wire.send((loading.command, entry.command))

    # --- faults

    def _check(self) -> None:
        """Every tenth of a second while something is under way: whose budget is used up, and is the wire dead?"""
        self._check_due = None
        now = asyncio.get_running_loop().time()
        for entry in (*self._sent, *self._waiting):
            if entry.deadline <= now and not entry.future.done():
                self.is_up = False
                message = "the broker does not answer"
                _fail(entry, BrokerUnavailable(message, retry_after_s=2))
        if self._sent and now - self._sent[0].sent_at >= REPLY_S:
            self._on_lost(TimeoutError(f"no reply for {REPLY_S} s"))
        self._waiting = deque(entry for entry in self._waiting if not entry.future.done())
        if self._sent or self._waiting:
            self._check_due = asyncio.get_running_loop().call_later(CHECK_S, self._check)

    def _on_lost(self, error: Exception) -> None:
        """The connection is of no use any more; what it owes is asked for again on the next."""
        self.is_up = False
        if self._wire is not None:
            self._wire.close()
            self._wire = None
        for entry in reversed(self._sent):
            if not entry.future.done():
                entry.is_loaded = False
                self._waiting.appendleft(entry)
        self._sent.clear()
        if self._waiting and self._opening is None:
            opening = self._open(self._backoff.next_s(error))
            self._opening = asyncio.get_running_loop().create_task(opening, name="broker-connect")

    async def _open(self, delay_s: float) -> None:
        """Until there is a wire, or nobody waits for one any more."""
        while True:
            if delay_s:
                await asyncio.sleep(delay_s)
            if all(entry.future.done() for entry in self._waiting):
                break
            try:
                self._wire = await Wire.open(self._pool, self._on_reply, self._on_lost)
                break
            except Exception as error:
                self.is_up = False
                if not is_passing(error):
                    while self._waiting:
                        _fail(self._waiting.popleft(), error)
                    break
                delay_s = self._backoff.next_s(error)
        self._opening = None
        self._flush()


def _fail(entry: _Entry, error: Exception) -> None:
    if not entry.future.done():
        if isinstance(error, ResponseError) and str(error).startswith(("OOM", "MISCONF")):
            error = BrokerUnavailable(f"the broker takes no writes: {error}", retry_after_s=5)
        entry.future.set_exception(error)
