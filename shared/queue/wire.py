"""One connection to the broker: commands go out without waiting, replies come back in their order.

redis-py opens the connection (address, TLS, password, database) and then hands over its socket: reading through
its streams costs several task switches for each call. Knows no scripts and never tries again.
"""

from __future__ import annotations

import asyncio
import logging
import random
import ssl
import time
from collections.abc import Callable, Iterator
from typing import Any

import hiredis
import redis
import redis.asyncio as aioredis
from redis.exceptions import AuthenticationError, NoPermissionError, ResponseError

from shared.errors import BrokerRefused

log = logging.getLogger(__name__)

CONNECT_S = 1.0
BACKOFF_S = (0.05, 2.0)
LOG_EVERY_S = 10.0
# Replies by which a server says "not me" or "not now": drop the connection and try again.
_AGAIN = (
    "READONLY",
    "LOADING",
    "CLUSTERDOWN",
    "MASTERDOWN",
    "MOVED",
    "ASK",
    "TRYAGAIN",
    "UNBLOCKED",
    "BUSY",
    "NOREPLICAS",
)
# Replies by which it says "no writes now": the connection is good, and reads and ends of work may go on.
_NO_WRITES = ("OOM", "MISCONF")
# Replies by which it says "not you".
_NO_LOGIN = ("WRONGPASS", "NOAUTH")
_NO_PERMISSION = "NOPERM"
_BROKEN = (OSError, TimeoutError, redis.ConnectionError, redis.TimeoutError)

Command = tuple[str | bytes | int | float, ...]


def is_passing(error: BaseException) -> bool:
    """Whether the same call may go through on a later try."""
    if isinstance(error, _BROKEN):
        return True
    # While it connects, redis-py names some of these by a class of its own, without the word.
    return _says(error, *_AGAIN) or type(error).__name__ in ("ReadOnlyError", "BusyLoadingError")


def is_refusing_writes(error: BaseException) -> bool:
    """Its disk or its memory is full."""
    return _says(error, *_NO_WRITES)


def refusal(error: BaseException, *, while_opening: bool = False) -> str | None:
    """What an operator has to mend where the server turns this process away; None for every other error.

    Made of the server's words, which hold no password, and never of the URL.
    """
    for cause in _chain(error):
        if isinstance(cause, AuthenticationError) or _says(cause, *_NO_LOGIN):
            return f"REDIS_URL: the broker refuses its user or password ({cause})"
        if isinstance(cause, NoPermissionError) or _says(cause, _NO_PERMISSION):
            return f"REDIS_URL: its user lacks a permission ({cause})"
        # An end of the stream is a connection that was cut, as without TLS.
        if isinstance(cause, ssl.SSLError) and not isinstance(cause, ssl.SSLEOFError):
            return f"REDIS_URL: TLS with the broker fails ({cause})"
        if while_opening and isinstance(cause, ResponseError) and not is_passing(cause):
            return f"REDIS_URL: the broker refuses it ({cause})"
    return None


def _chain(error: BaseException) -> Iterator[BaseException]:
    """redis-py makes one kind of error, with the text alone, of what it caught."""
    cause: BaseException | None = error
    while cause is not None:
        yield cause
        cause = cause.__cause__ or cause.__context__


def is_waited_for(error: BaseException) -> bool:
    """Whether a patient call is offered again on the same connection: no writes now, or not by this user."""
    return is_refusing_writes(error) or _says(error, *_NO_LOGIN, _NO_PERMISSION)


def _says(error: BaseException, *words: str) -> bool:
    return isinstance(error, ResponseError) and str(error).startswith(words)


def pack(command: Command) -> bytes:
    """As it travels. Raises what its arguments deserve, such as UnicodeEncodeError for half a character."""
    pack_command: Any = hiredis.pack_command
    packed: bytes = pack_command(command)
    return packed


class Backoff:
    """Jittered, doubling from 50 ms to 2 s; logs one failure every 10 s at most, however often it comes and goes."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._failures = 0
        self._logged_at = float("-inf")
        self._is_told = False

    def next_s(self, error: BaseException) -> float:
        low, high = BACKOFF_S
        delay = min(high, low * 2 ** min(self._failures, 10))
        self._failures += 1
        self.tell(error)
        return float(delay * random.uniform(0.5, 1.0))

    def tell(self, error: BaseException) -> None:
        now = time.monotonic()
        if now - self._logged_at > LOG_EVERY_S:
            self._logged_at = now
            self._is_told = True
            told = refusal(error) or f"{type(error).__name__} {error}".rstrip()
            if is_refusing_writes(error):
                log.warning("%s: the broker takes no writes, trying again: %s", self._what, error)
            else:
                log.warning("%s: broker unavailable, trying again: %s", self._what, told)

    def clear(self) -> None:
        if self._failures and self._is_told:
            log.info("%s: broker is back after %d failed tries", self._what, self._failures)
        self._failures = 0
        self._is_told = False


class Wire(asyncio.Protocol):
    """`on_reply` gets each reply, a ResponseError among them; `on_lost` is called once, unless closed first."""

    def __init__(self, on_reply: Callable[[Any], None], on_lost: Callable[[Exception], None]):
        self._loop = asyncio.get_running_loop()
        self._on_reply = on_reply
        self._on_lost = on_lost
        self._replies: Any = hiredis.Reader(
            protocolError=redis.ConnectionError, replyError=ResponseError
        )
        self._opened: Any = None
        self._transport: Any = None
        self._has_room = asyncio.Event()
        self._has_room.set()
        self._moved_at = 0.0
        self._unsent = 0

    @classmethod
    async def open(
        cls,
        pool: aioredis.ConnectionPool,
        on_reply: Callable[[Any], None],
        on_lost: Callable[[Exception], None],
    ) -> Wire:
        """Raises BrokerRefused, or what redis-py raises; TimeoutError after `CONNECT_S`."""
        wire = cls(on_reply, on_lost)
        make: Any = pool.make_connection
        opened = make()
        try:
            # `asyncio.timeout`: `wait_for` of Python 3.11 can swallow a cancellation, and a close would hang.
            async with asyncio.timeout(CONNECT_S):
                await opened.connect()
            # redis-py has no public way to hand over its socket; it still owns and closes it.
            wire._transport = opened._writer.transport
        except BaseException as error:
            await opened.disconnect(nowait=True)
            if (told := refusal(error, while_opening=True)) is not None:
                raise BrokerRefused(told) from error
            raise
        wire._opened = opened
        wire._transport.set_protocol(wire)
        return wire

    @property
    def has_room(self) -> bool:
        """False while the server takes so little in that what is sent piles up here."""
        return self._has_room.is_set()

    async def room(self) -> None:
        await self._has_room.wait()

    def send(self, packed: bytes) -> None:
        self._transport.write(packed)

    def still_since(self) -> float:
        """The loop's time when a byte last moved, in or out. Asked for often, it is exact to that."""
        unsent = self._transport.get_write_buffer_size()
        if unsent < self._unsent:
            self._moved_at = self._loop.time()
        self._unsent = unsent
        return self._moved_at

    def close(self) -> None:
        """At once: what was not sent is dropped, what was not answered never will be."""
        if self._opened is not None:
            self._transport.abort()
            opened, self._opened = self._opened, None
            opened._close()
        self._has_room.set()

    # --- called by the transport

    def data_received(self, data: bytes) -> None:
        self._moved_at = self._loop.time()
        self._replies.feed(data)
        try:
            while (reply := self._replies.gets()) is not False and self._opened is not None:
                self._on_reply(reply)
        except redis.ConnectionError as error:
            self._lose(error)

    def connection_lost(self, error: Exception | None) -> None:
        self._lose(error or redis.ConnectionError("the broker closed the connection"))

    def pause_writing(self) -> None:
        self._has_room.clear()

    def resume_writing(self) -> None:
        self._has_room.set()

    def _lose(self, error: Exception) -> None:
        if self._opened is not None:
            self.close()
            self._on_lost(error)
