"""Connections to the broker: one that pipelines every script call, one for each blocking reader, one for beats.

Owns time-outs, reconnecting and re-sending (each script is safe to run twice). Knows no keys and no scripts'
meaning. The library's own retries are off: they would multiply each time-out.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections import deque
from collections.abc import Sequence
from typing import Any

import hiredis
import msgspec
import redis
import redis.asyncio as aioredis
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff
from redis.exceptions import NoScriptError, RedisError, ResponseError
from redis.retry import Retry

from shared.errors import BrokerUnavailable, SettingsError
from shared.queue.scripts import Call
from shared.settings import QueueSettings

log = logging.getLogger(__name__)

# Time-outs are `asyncio.timeout`: `wait_for` of Python 3.11 can swallow a cancellation, and a close would hang.
CONNECT_S = 1.0
REPLY_S = 1.2
BATCH_CALLS = 128
BATCH_BYTES = 4 << 20
BACKOFF_S = (0.05, 2.0)
# Replies by which a server says "not me" or "not now": drop the connection and try again.
_AGAIN = (
    "READONLY",
    "LOADING",
    "CLUSTERDOWN",
    "MASTERDOWN",
    "MOVED",
    "UNBLOCKED",
    "BUSY",
    "NOREPLICAS",
)
BROKEN = (OSError, asyncio.TimeoutError, redis.ConnectionError, redis.TimeoutError)


def is_passing(error: BaseException) -> bool:
    """Whether the same call may go through on a later try."""
    if isinstance(error, BROKEN):
        return True
    return isinstance(error, ResponseError) and (
        str(error).startswith(_AGAIN)
        or type(error).__name__ in ("ReadOnlyError", "BusyLoadingError")
    )


class Backoff:
    """Jittered, doubling from 50 ms to 2 s; logs the first failure and then at most every 10 s."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._failures = 0
        self._logged_at = 0.0

    def next_s(self, error: BaseException) -> float:
        low, high = BACKOFF_S
        delay = min(high, low * 2 ** min(self._failures, 10))
        self._failures += 1
        now = time.monotonic()
        if self._failures == 1 or now - self._logged_at > 10:
            self._logged_at = now
            log.warning("%s: broker unavailable, trying again: %r", self._what, error)
        return float(delay * random.uniform(0.5, 1.0))

    def clear(self) -> None:
        if self._failures:
            log.info("%s: broker is back after %d failed tries", self._what, self._failures)
        self._failures = 0


class _Entry:
    __slots__ = ("call", "deadline", "future")

    def __init__(
        self, call: Call | tuple[Any, ...], deadline: float, future: asyncio.Future[Any]
    ) -> None:
        self.call = call
        self.deadline = deadline
        self.future = future


class Line:
    """Runs calls over one connection; calls made in the same turn of the loop share one round trip.

    A caller that is cancelled leaves its call running: a script in flight is never cut.
    """

    def __init__(
        self, pool: aioredis.ConnectionPool, budget_s: float, what: str = "commands"
    ) -> None:
        self._pool: Any = pool
        self._budget_s = budget_s
        self._connection: Any = None
        self._waiting: deque[_Entry] = deque()
        self._wake = asyncio.Event()
        self._backoff = Backoff(what)
        self._task: asyncio.Task[None] | None = None
        self.is_up = False
        self.last_reply_at = 0.0

    async def run(self, call: Call | tuple[Any, ...], *, patient: bool = False) -> Any:
        """The reply. `patient` waits for as long as it takes; else BrokerUnavailable after the budget."""
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._serve(), name="broker-line")
        loop = asyncio.get_running_loop()
        deadline = float("inf") if patient else loop.time() + self._budget_s
        entry = _Entry(call, deadline, loop.create_future())
        self._waiting.append(entry)
        self._wake.set()
        return await entry.future

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        for entry in self._waiting:
            _fail(entry, BrokerUnavailable("the connection was closed"))
        self._waiting.clear()
        await self._drop()

    async def _serve(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._waiting:
                batch = self._take()
                if not batch:
                    break
                try:
                    await self._send(batch)
                except Exception as error:
                    await self._drop()
                    self.is_up = False
                    if not is_passing(error):
                        for entry in batch:
                            _fail(entry, error)
                        continue
                    self._waiting.extendleft(reversed([e for e in batch if not e.future.done()]))
                    delay = self._backoff.next_s(error)
                    self._expire(asyncio.get_running_loop().time() + delay + 0.1, error)
                    await asyncio.sleep(delay)
                else:
                    self._backoff.clear()

    def _take(self) -> list[_Entry]:
        batch: list[_Entry] = []
        size = 0
        while self._waiting and len(batch) < BATCH_CALLS and size < BATCH_BYTES:
            entry = self._waiting.popleft()
            if entry.future.done():
                continue
            batch.append(entry)
            if isinstance(entry.call, Call):
                size += sum(len(arg) for arg in entry.call.args if isinstance(arg, bytes))
        return batch

    async def _send(self, batch: Sequence[_Entry]) -> None:
        """Fails as a whole on a broken connection, call by call on a script's own error."""
        # No attempt outlasts the batch's shortest budget, so that each caller hears within its own.
        left_s = max(0.05, min(e.deadline for e in batch) - asyncio.get_running_loop().time())
        if self._connection is None:
            connection = self._pool.make_connection()
            async with asyncio.timeout(min(CONNECT_S, left_s)):
                await connection.connect()
            self._connection = connection
        connection = self._connection
        commands = [e.call.command if isinstance(e.call, Call) else e.call for e in batch]
        # hiredis packs a command about seven times as fast as the client does.
        pack: Any = hiredis.pack_command
        packed = [pack(command) for command in commands]
        missing: list[_Entry] = []
        again: Exception | None = None
        async with asyncio.timeout(min(REPLY_S, left_s)):
            # Sending waits too: a broker that reads nothing fills the socket with a large payload.
            await connection.send_packed_command(packed)
            for entry in batch:
                try:
                    reply = await connection.read_response()
                except NoScriptError:
                    missing.append(entry)
                except ResponseError as error:
                    if is_passing(error):
                        again = error
                    else:
                        _fail(entry, error)
                else:
                    if not entry.future.done():
                        entry.future.set_result(reply)
        self.is_up = again is None
        self.last_reply_at = time.monotonic()
        if again is not None:
            raise again
        if missing:
            await self._load(connection, missing)
            await self._send(missing)

    async def _load(self, connection: Any, entries: Sequence[_Entry]) -> None:
        calls = {e.call.script.sha: e.call for e in entries if isinstance(e.call, Call)}
        async with asyncio.timeout(REPLY_S):
            await connection.send_packed_command(
                connection.pack_commands([call.load_command for call in calls.values()])
            )
            for _ in calls:
                await connection.read_response()

    def _expire(self, at: float, error: BaseException) -> None:
        kept = deque[_Entry]()
        for entry in self._waiting:
            if entry.deadline < at:
                _fail(
                    entry,
                    BrokerUnavailable(f"the broker does not answer: {error!r}", retry_after_s=2),
                )
            elif not entry.future.done():
                kept.append(entry)
        self._waiting = kept

    async def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            try:
                async with asyncio.timeout(CONNECT_S):
                    await connection.disconnect()
            except Exception as error:
                log.debug("closing a broken connection: %s", error)


def _fail(entry: _Entry, error: Exception) -> None:
    if not entry.future.done():
        if isinstance(error, ResponseError) and str(error).startswith(("OOM", "MISCONF")):
            error = BrokerUnavailable(f"the broker takes no writes: {error}", retry_after_s=5)
        entry.future.set_exception(error)


class BlockingReader:
    """One connection for one blocking command at a time (XREAD BLOCK, BZPOPMIN)."""

    def __init__(self, pool: aioredis.ConnectionPool, what: str) -> None:
        self._pool: Any = pool
        self._connection: Any = None
        self._backoff = Backoff(what)

    async def run(self, command: tuple[Any, ...], block_s: float) -> Any:
        """The reply, None after a passing fault (already slept off): the caller just comes again."""
        try:
            if self._connection is None:
                connection = self._pool.make_connection()
                async with asyncio.timeout(CONNECT_S):
                    await connection.connect()
                self._connection = connection
            async with asyncio.timeout(block_s + 3):
                await self._connection.send_packed_command(self._connection.pack_command(*command))
                reply = await self._connection.read_response()
        except asyncio.CancelledError:
            # A reply may be under way: this connection's stream of replies is no longer in step.
            await self.close()
            raise
        except Exception as error:
            await self.close()
            if not is_passing(error):
                raise
            await asyncio.sleep(self._backoff.next_s(error))
            return None
        self._backoff.clear()
        return reply

    async def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            try:
                async with asyncio.timeout(CONNECT_S):
                    await connection.disconnect()
            except Exception as error:
                log.debug("closing a blocking connection: %s", error)


class SyncLine:
    """A blocking connection for a thread of its own (beats)."""

    def __init__(self, url: str) -> None:
        options = _options() | {"retry": Retry(NoBackoff(), 0), "socket_timeout": REPLY_S}
        self._client: Any = redis.Redis.from_url(url, **options)

    def run(self, call: Call) -> Any:
        """The reply. Raises BrokerUnavailable; the caller tries again at its next beat."""
        try:
            try:
                return self._client.execute_command(*call.command)
            except NoScriptError:
                self._client.execute_command(*call.load_command)
                return self._client.execute_command(*call.command)
        except (RedisError, OSError) as error:
            self._client.connection_pool.disconnect()
            raise BrokerUnavailable(f"the broker does not answer: {error}") from error

    def close(self) -> None:
        self._client.close()


class BrokerFacts(msgspec.Struct, frozen=True):
    """What the server says of itself, for the start-up checks."""

    version: str
    policy: str
    is_persistent: bool


class Connection:
    """Every connection of one process to one broker. Room is left here for Sentinel and Cluster."""

    def __init__(self, settings: QueueSettings) -> None:
        self._url = settings.redis_url
        try:
            self._pool = aioredis.ConnectionPool.from_url(self._url, **_options())
        except ValueError as error:
            raise SettingsError(f"REDIS_URL: {error}") from error
        self.line = Line(self._pool, settings.broker_budget_s)
        self._readers: list[BlockingReader] = []

    @classmethod
    def open(cls, settings: QueueSettings) -> Connection:
        """Opens nothing yet: the first call connects, and a broker that is away is waited for."""
        return cls(settings)

    def reader(self, what: str) -> BlockingReader:
        reader = BlockingReader(self._pool, what)
        self._readers.append(reader)
        return reader

    def sync_line(self) -> SyncLine:
        return SyncLine(self._url)

    async def facts(self) -> BrokerFacts:
        info = (await self.line.run(("INFO", "server"))).decode()
        fields = dict(line.split(":", 1) for line in info.splitlines() if ":" in line)
        policy = await self.line.run(("CONFIG", "GET", "maxmemory-policy", "appendonly", "save"))
        config = {policy[i].decode(): policy[i + 1].decode() for i in range(0, len(policy), 2)}
        return BrokerFacts(
            version=fields.get("valkey_version") or fields.get("redis_version", "0"),
            policy=config.get("maxmemory-policy", ""),
            is_persistent=config.get("appendonly") == "yes" or bool(config.get("save")),
        )

    async def close(self) -> None:
        await self.line.close()
        for reader in self._readers:
            await reader.close()
        await self._pool.disconnect()


def _options() -> dict[str, Any]:
    # RESP2: the replies of scripts are the same in both, and INFO and XREAD have one shape to parse.
    return {
        "socket_connect_timeout": CONNECT_S,
        "socket_timeout": None,
        "retry": AsyncRetry(NoBackoff(), 0),
        "retry_on_error": [],
        "health_check_interval": 0,
        "protocol": 2,
    }
