"""The connection on which every script call of a process travels: pipelined, timed, sent again where that helps.

Each script is safe to run twice, so what was not answered is simply sent again on the next connection. Knows
no keys and no scripts' meaning. The library's own retries are off: they would multiply each time-out.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any

import redis
import redis.asyncio as aioredis
from redis.exceptions import ResponseError

from shared.errors import BrokerRefused, BrokerUnavailable
from shared.queue import merging
from shared.queue.scripts import Call
from shared.queue.wire import (
    Backoff,
    Command,
    Wire,
    is_passing,
    is_refusing_writes,
    is_waited_for,
    pack,
    refusal,
)

REPLY_S = 1.2
CHECK_S = 0.1
SLOWEST = (
    1 << 20
)  # bytes a second: what was handed over may still be on its way, unseen, in buffers below
BURST = 8
BATCH_CALLS = 128
BATCH_BYTES = 4 << 20


class _Entry:
    """A call under way. Once it was sent it may have run, whatever comes of it."""

    __slots__ = ("call", "deadline", "future", "size", "times_sent", "was_refused")

    def __init__(self, call: Call | Command, deadline: float, future: asyncio.Future[Any]) -> None:
        self.call = call
        self.deadline = deadline
        self.future = future
        self.size = merging.size_of(call)
        self.times_sent = 0
        self.was_refused = False

    @property
    def is_patient(self) -> bool:
        return self.deadline == float("inf")


class _Sent:
    """One command on the wire, for one entry or several. `is_loaded`: it brings its script along."""

    __slots__ = ("at", "call", "entries", "is_loaded")

    def __init__(self, entries: Sequence[_Entry], at: float) -> None:
        self.entries = entries
        self.at = at
        self.is_loaded = False
        self.call = entries[0].call
        if len(entries) > 1:
            self.call = merging.merged([e.call for e in entries if isinstance(e.call, Call)])

    @property
    def size(self) -> int:
        return sum(entry.size for entry in self.entries)

    @property
    def command(self) -> Command:
        if not isinstance(self.call, Call):
            return self.call
        return self.call.loading_command if self.is_loaded else self.call.command


class Line:
    """Calls made in the same turn of the loop share one write, some of them one command; replies are handed out as
    they come.

    A call whose caller is cancelled is not sent any more; one that is under way is never cut.
    """

    def __init__(
        self, pool: aioredis.ConnectionPool, budget_s: float, what: str = "commands"
    ) -> None:
        self._pool = pool
        self._budget_s = budget_s
        self._backoff = Backoff(what)
        self._waits = Backoff(what)  # between offers of what is refused on a good connection
        self._wire: Wire | None = None
        self._waiting: deque[_Entry] = deque()  # not sent
        self._sent: deque[_Sent] = deque()  # not answered
        self._opening: asyncio.Task[None] | None = None
        self._refused: list[_Entry] = []  # patient, and the broker does not take it for now
        self._making_room: asyncio.Task[None] | None = None
        self._again_due: asyncio.TimerHandle | None = None
        self._check_due: asyncio.TimerHandle | None = None
        self._is_flush_due = False
        self._is_closed = False
        self._turned_away: str | None = None
        self.is_up = False

    @cached_property
    def _loop(self) -> asyncio.AbstractEventLoop:
        """Kept, since each look for it is a system call (getpid)."""
        return asyncio.get_running_loop()

    def run(self, call: Call | Command, *, patient: bool = False) -> asyncio.Future[Any]:
        """The reply. `patient` waits for as long as it takes; else BrokerUnavailable after the budget.

        It is under way from here on; who must not lose the reply when cancelled shields it.
        """
        loop = self._loop
        deadline = float("inf") if patient else loop.time() + self._budget_s
        future = loop.create_future()
        if self._is_closed:
            future.set_exception(_closed())
            return future
        self._waiting.append(_Entry(call, deadline, future))
        if not (self._sent or self._is_flush_due) or len(self._waiting) >= BURST:
            # Nothing is under way, so there is nothing to be gained by waiting for more (Nagle, RFC 896); or so much
            # waits that the broker and whoever reads its notices may begin while the rest is still being made.
            self._flush()
        elif not self._is_flush_due:
            self._is_flush_due = True
            loop.call_soon(self._flush)
        return future

    async def close(self) -> None:
        """For good: calls under way fail, and so does every later one."""
        self._is_closed = True
        tasks = [task for task in (self._opening, self._making_room) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for timer in (self._check_due, self._again_due):
            if timer is not None:
                timer.cancel()
        if self._wire is not None:
            self._wire.close()
            self._wire = None
        for entry in (*self._unanswered(), *self._waiting, *self._refused):
            _fail(entry, _closed())
        for entries in (self._sent, self._waiting, self._refused):
            entries.clear()

    # --- sending

    def _flush(self) -> None:
        self._is_flush_due = False
        if self._is_closed:
            return
        loop = self._loop
        if self._check_due is None and (self._waiting or self._sent):
            self._check_due = loop.call_later(CHECK_S, self._check)
        if self._wire is None:
            if self._opening is None and self._waiting:
                self._opening = loop.create_task(self._open(0.0), name="broker-connect")
            return
        while self._waiting and self._wire.has_room:
            self._send(self._take(), self._wire)
        if self._waiting and self._making_room is None:
            # A large payload that the broker does not take in: the rest waits here, within its budgets.
            self._making_room = loop.create_task(self._go_on(self._wire))

    async def _go_on(self, wire: Wire) -> None:
        await wire.room()
        self._making_room = None
        self._flush()

    def _send(self, entries: Sequence[_Entry], wire: Wire) -> None:
        now = self._loop.time()
        if len(entries) == 1:
            self._put([_Sent(entries, now)], wire)
            return
        groups = merging.runs([e.call for e in entries], [e.size for e in entries])
        self._put([_Sent([entries[i] for i in places], now) for places in groups], wire)

    def _put(self, commands: Iterable[_Sent], wire: Wire) -> None:
        """In their order: what is kept as sent must be in step with the bytes."""
        left = deque(commands)
        packed: list[bytes] = []
        while left:
            sent = left.popleft()
            try:
                packed.append(pack(sent.command))
            except Exception as error:
                # Nothing of it was sent, so no reply will come for it.
                if len(sent.entries) == 1:
                    _fail(sent.entries[0], error)
                else:
                    left.extendleft(_Sent([entry], sent.at) for entry in reversed(sent.entries))
                continue
            for entry in sent.entries:
                entry.times_sent += 1
            self._sent.append(sent)
        wire.send(b"".join(packed))

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
        try:
            sent = self._sent.popleft()
        except IndexError:
            # A server that ends a connection may say why, unasked.
            said = reply if isinstance(reply, ResponseError) else type(reply).__name__
            self._on_lost(redis.ConnectionError(f"a reply to nothing: {said}"))
            return
        if isinstance(reply, ResponseError):
            self._on_error(sent, reply)
            return
        self._backoff.clear()
        self.is_up = True
        if len(sent.entries) == 1:
            _answer(sent.entries[0], reply)
            return
        if not isinstance(reply, list) or len(reply) != len(sent.entries):
            self._sent.appendleft(sent)
            self._on_lost(redis.ConnectionError("the replies are out of step"))
            return
        for entry, own in zip(sent.entries, reply, strict=True):
            if isinstance(own, ResponseError):
                self._refuse(entry, own)
            else:
                _answer(entry, own)

    def _on_error(self, sent: _Sent, error: ResponseError) -> None:
        if is_passing(error):
            self._sent.appendleft(sent)
            self._on_lost(error)
        elif str(error).startswith("NOSCRIPT") and not sent.is_loaded and self._wire is not None:
            sent.is_loaded = True
            self._put([sent], self._wire)
        else:
            for entry in sent.entries:
                self._refuse(entry, error)

    def _refuse(self, entry: _Entry, error: ResponseError) -> None:
        if entry.is_patient and is_waited_for(error):
            if not entry.was_refused:
                entry.was_refused = True
                entry.future.add_done_callback(self._taken_at_last)
            self._refused.append(entry)
            if self._again_due is None:
                delay_s = self._waits.next_s(error)
                self._again_due = self._loop.call_later(delay_s, self._again)
        else:
            if is_waited_for(error):
                self._waits.tell(error)
            _fail(entry, error)

    def _again(self) -> None:
        self._again_due = None
        self._waiting.extend(self._refused)
        self._refused.clear()
        self._flush()

    def _taken_at_last(self, future: asyncio.Future[Any]) -> None:
        if not future.cancelled() and future.exception() is None:
            self._waits.clear()

    # --- faults

    def _unanswered(self) -> list[_Entry]:
        return [entry for sent in self._sent for entry in sent.entries]

    def _check(self) -> None:
        """Every tenth of a second while something is under way: whose budget is used up, and is the wire dead?

        A wire on which bytes move is not, however long its oldest call takes.
        """
        self._check_due = None
        now = self._loop.time()
        for entry in (*self._unanswered(), *self._waiting):
            if entry.deadline <= now and not entry.future.done():
                self.is_up = False
                _fail(entry, self._unavailable())
        moved_at = self._wire.still_since() if self._wire is not None else now
        if self._sent:
            head = self._sent[0]
            still_s = now - max(moved_at, head.at)
            if still_s >= REPLY_S + head.size / SLOWEST:
                self._on_lost(TimeoutError(f"not a byte for {still_s:.1f} s"))
        self._waiting = deque(entry for entry in self._waiting if not entry.future.done())
        if self._sent or self._waiting:
            self._check_due = self._loop.call_later(CHECK_S, self._check)

    def _unavailable(self) -> BrokerUnavailable:
        if self._turned_away is not None:
            return BrokerRefused(self._turned_away, retry_after_s=5)
        return BrokerUnavailable("the broker does not answer", retry_after_s=2)

    def _on_lost(self, error: Exception) -> None:
        """The connection is of no use any more; what it owes is asked for again on the next."""
        self.is_up = False
        if self._wire is not None:
            self._wire.close()
            self._wire = None
        for entry in reversed(self._unanswered()):
            if not entry.future.done():
                self._waiting.appendleft(entry)
        self._sent.clear()
        if self._waiting and self._opening is None:
            opening = self._open(self._backoff.next_s(error))
            self._opening = self._loop.create_task(opening, name="broker-connect")

    async def _open(self, delay_s: float) -> None:
        """Until there is a wire, or nobody waits for one any more."""
        while True:
            if delay_s:
                await asyncio.sleep(delay_s)
            self._waiting = deque(entry for entry in self._waiting if not entry.future.done())
            if not self._waiting:
                break
            try:
                self._wire = await Wire.open(self._pool, self._on_reply, self._on_lost)
                self._turned_away = None
                break
            except Exception as error:
                self.is_up = False
                self._turned_away = error.message if isinstance(error, BrokerRefused) else None
                if not (isinstance(error, BrokerRefused) or is_passing(error)):
                    while self._waiting:
                        _fail(self._waiting.popleft(), error)
                    break
                delay_s = self._backoff.next_s(error)
        self._opening = None
        self._flush()


def _answer(entry: _Entry, reply: Any) -> None:
    if not entry.future.done():
        entry.future.set_result(reply)


def _fail(entry: _Entry, error: Exception) -> None:
    if not entry.future.done():
        # Of the copy that was refused it is known that it did not run; of an earlier one it is not.
        may_have_run = entry.times_sent > 1
        if is_refusing_writes(error):
            error = BrokerUnavailable(f"the broker takes no writes: {error}", retry_after_s=5)
        elif (told := refusal(error)) is not None:
            error = BrokerRefused(told, retry_after_s=5)
        else:
            may_have_run = entry.times_sent > 0
        if isinstance(error, BrokerUnavailable):
            error.may_have_run = may_have_run
        entry.future.set_exception(error)


def _closed() -> BrokerUnavailable:
    return BrokerUnavailable("the connection was closed")
