"""The connection on which every script call of a process travels: pipelined, timed, sent again where that helps.

Each script is safe to run twice, so what was not answered is simply sent again on the next connection. Knows
no keys and no scripts' meaning. The library's own retries are off: they would multiply each time-out.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Sequence
from typing import Any

import redis.asyncio as aioredis
from redis.exceptions import ResponseError

from shared.errors import BrokerUnavailable
from shared.queue.scripts import Call
from shared.queue.wire import Backoff, Command, Wire, is_passing, is_refusing_writes, pack

log = logging.getLogger(__name__)

REPLY_S = 1.2
CHECK_S = 0.1
AGAIN_S = 0.5
BATCH_CALLS = 128
BATCH_BYTES = 4 << 20


class _Entry:
    """A call under way. `is_loaded`: its script was sent along, so another NOSCRIPT is an error. `was_sent`: it may
    have run, whatever comes of it.
    """

    __slots__ = ("call", "deadline", "future", "is_loaded", "sent_at", "was_sent")

    def __init__(self, call: Call | Command, deadline: float, future: asyncio.Future[Any]) -> None:
        self.call = call
        self.deadline = deadline
        self.future = future
        self.sent_at = 0.0
        self.was_sent = False
        self.is_loaded = False

    @property
    def is_patient(self) -> bool:
        return self.deadline == float("inf")

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

    A call whose caller is cancelled is not sent any more; one that is under way is never cut.
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
        self._refused: list[_Entry] = []  # patient, and the broker takes no writes for now
        self._making_room: asyncio.Task[None] | None = None
        self._again_due: asyncio.TimerHandle | None = None
        self._check_due: asyncio.TimerHandle | None = None
        self._is_flush_due = False
        self._is_closed = False
        self.is_up = False

    async def run(self, call: Call | Command, *, patient: bool = False) -> Any:
        """The reply. `patient` waits for as long as it takes; else BrokerUnavailable after the budget."""
        return await self.send(call, patient=patient)

    def send(self, call: Call | Command, *, patient: bool = False) -> asyncio.Future[Any]:
        """As `run`, for who must not lose the reply when cancelled: shield it."""
        loop = asyncio.get_running_loop()
        deadline = float("inf") if patient else loop.time() + self._budget_s
        future = loop.create_future()
        if self._is_closed:
            future.set_exception(_closed())
            return future
        self._waiting.append(_Entry(call, deadline, future))
        if not self._is_flush_due:
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
        for entry in (*self._sent, *self._waiting, *self._refused):
            _fail(entry, _closed())
        for entries in (self._sent, self._waiting, self._refused):
            entries.clear()

    # --- sending

    def _flush(self) -> None:
        self._is_flush_due = False
        if self._is_closed:
            return
        loop = asyncio.get_running_loop()
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
        now = asyncio.get_running_loop().time()
        packed: list[bytes] = []
        for entry in entries:
            try:
                packed.append(pack(entry.command))
            except Exception as error:
                # Nothing of it was sent, so no reply will come for it.
                _fail(entry, error)
                continue
            entry.sent_at = now
            entry.was_sent = True
            self._sent.append(entry)
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
        elif is_refusing_writes(error) and entry.is_patient:
            self._refused.append(entry)
            if self._again_due is None:
                log.warning("commands: the broker takes no writes, trying again: %s", error)
                self._again_due = asyncio.get_running_loop().call_later(AGAIN_S, self._again)
        else:
            _fail(entry, error)

    def _again(self) -> None:
        self._again_due = None
        self._waiting.extend(self._refused)
        self._refused.clear()
        self._flush()

    def _load(self, entry: _Entry, wire: Wire) -> None:
        """Send the script, then the call again."""
        assert isinstance(entry.call, Call)
        nobody: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        nobody.cancel()
        entry.is_loaded = True
        self._send((_Entry(entry.call.load_command, entry.deadline, nobody), entry), wire)

    # --- faults

    def _check(self) -> None:
        """Every tenth of a second while something is under way: whose budget is used up, and is the wire dead?

        A wire on which bytes move is not, however long its oldest call takes.
        """
        self._check_due = None
        now = asyncio.get_running_loop().time()
        for entry in (*self._sent, *self._waiting):
            if entry.deadline <= now and not entry.future.done():
                self.is_up = False
                message = "the broker does not answer"
                _fail(entry, BrokerUnavailable(message, retry_after_s=2))
        moved_at = self._wire.still_since() if self._wire is not None else now
        if self._sent and now - max(moved_at, self._sent[0].sent_at) >= REPLY_S:
            self._on_lost(TimeoutError(f"not a byte for {REPLY_S} s"))
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
            self._waiting = deque(entry for entry in self._waiting if not entry.future.done())
            if not self._waiting:
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
        if is_refusing_writes(error):
            error = BrokerUnavailable(f"the broker takes no writes: {error}", retry_after_s=5)
        elif isinstance(error, BrokerUnavailable):
            error.may_have_run = entry.was_sent
        entry.future.set_exception(error)


def _closed() -> BrokerUnavailable:
    return BrokerUnavailable("the connection was closed")
