"""Connections to the broker: the line of script calls, one for each blocking reader, one for beats."""

from __future__ import annotations

import asyncio
from typing import Any

import redis
import redis.asyncio as aioredis
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff
from redis.exceptions import NoScriptError, RedisError, ResponseError
from redis.retry import Retry

from shared.errors import BrokerRefused, BrokerUnavailable, SettingsError
from shared.queue.line import REPLY_S, Line
from shared.queue.scripts import Call
from shared.queue.wire import CONNECT_S, Backoff, Command, Wire, is_passing, pack, refusal
from shared.settings import QueueSettings

MARGIN_S = 3.0  # that a reply to a blocking command may come late
FORMS = "redis://[user:password@]host[:port][/database], rediss:// for TLS, or unix://[user:password@]/path"


class BlockingReader:
    """One connection for one blocking command at a time (XREAD BLOCK, BZPOPMIN)."""

    def __init__(self, pool: aioredis.ConnectionPool, what: str) -> None:
        self._pool = pool
        self._wire: Wire | None = None
        self._reply: asyncio.Future[Any] | None = None
        self._behind: list[Any] | None = None
        self._backoff = Backoff(what)

    async def run(self, command: Command, block_s: float) -> Any:
        """The reply, None after a fault of broker or network (already slept off): the caller just comes again."""
        return await self._run(pack(command), block_s, None)

    async def run_both(self, command: Command, behind: Command, block_s: float) -> tuple[Any, Any]:
        """Replies as of `run`, and of what the server runs as soon as `command` has ended, without a way to us and back
        between: a ResponseError where it was refused, None where it is not known.
        """
        replies: list[Any] = []
        reply = await self._run(pack(command) + pack(behind), block_s, replies)
        return reply, replies[1] if len(replies) == 2 else None

    async def _run(self, packed: bytes, block_s: float, both: list[Any] | None) -> Any:
        try:
            if self._wire is None:
                self._wire = await Wire.open(self._pool, self._on_reply, self._on_lost)
            self._reply = asyncio.get_running_loop().create_future()
            self._behind = both
            async with asyncio.timeout(block_s + MARGIN_S):
                self._wire.send(packed)
                reply = await self._reply
        except asyncio.CancelledError:
            # A reply may be under way: this connection's stream of replies is no longer in step.
            self.close()
            raise
        except Exception as error:
            self.close()
            # An error that is no passing one comes again as well: it is waited for, not spun on.
            if not (is_passing(error) or isinstance(error, (ResponseError, BrokerRefused))):
                raise
            await asyncio.sleep(self._backoff.next_s(error))
            return None
        self._backoff.clear()
        return reply

    def _on_reply(self, reply: Any) -> None:
        if self._reply is None or self._reply.done():
            return
        if self._behind is not None:
            self._behind.append(reply)
            if len(self._behind) == 1:
                return
            reply = self._behind[0]
        if isinstance(reply, ResponseError):
            self._reply.set_exception(reply)
        else:
            self._reply.set_result(reply)

    def _on_lost(self, error: Exception) -> None:
        self._wire = None
        if self._reply is not None and not self._reply.done():
            self._reply.set_exception(error)

    def close(self) -> None:
        """Whoever still waits in `run` is told as of a lost connection."""
        wire, self._wire = self._wire, None
        if wire is not None:
            wire.close()
        if self._reply is not None and not self._reply.done():
            self._reply.set_exception(redis.ConnectionError("the connection was closed"))


class SyncLine:
    """A blocking connection for a thread of its own (beats). One try a call: the next beat is the next try."""

    def __init__(self, url: str) -> None:
        pool = redis.ConnectionPool.from_url(url)
        pool.connection_kwargs.update(
            _options(Retry(NoBackoff(), 0)) | {"socket_timeout": REPLY_S, "decode_responses": False}
        )
        self._client: Any = redis.Redis.from_pool(pool)

    def run(self, call: Call) -> Any:
        """The reply. Raises BrokerUnavailable, BrokerRefused among them."""
        try:
            try:
                return self._client.execute_command(*call.command)
            except NoScriptError:
                return self._client.execute_command(*call.loading_command)
        except (RedisError, OSError) as error:
            self._client.connection_pool.disconnect()
            if (told := refusal(error)) is not None:
                raise BrokerRefused(told) from error
            raise BrokerUnavailable(f"the broker does not answer: {error}") from error

    def close(self) -> None:
        self._client.close()


class Connection:
    """Every connection of one process to one broker. Room is left here for Sentinel and Cluster."""

    def __init__(self, settings: QueueSettings) -> None:
        self._url = settings.redis_url
        self._pool = _pool(self._url)
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

    async def close(self) -> None:
        await self.line.close()
        for reader in self._readers:
            reader.close()
        await self._pool.disconnect()


def _pool(url: str) -> aioredis.ConnectionPool:
    """Raises SettingsError. Its text is our own: what redis-py and urllib say may quote a piece of the password."""
    try:
        pool = aioredis.ConnectionPool.from_url(url)
    except ValueError:
        raise SettingsError(
            f"REDIS_URL: must be {FORMS}; what is special in a password is written as %XX"
        ) from None
    # After the URL, whose query may name any of them.
    pool.connection_kwargs.update(_options(AsyncRetry(NoBackoff(), 0)))
    make: Any = pool.make_connection
    try:
        # Opens nothing, but takes every option, and reads the certificates.
        made = make()
        if isinstance(made, aioredis.SSLConnection):
            made.ssl_context.get()
    except OSError as error:
        problem = f"a certificate or key that its query names cannot be read ({error})"
        raise SettingsError(f"REDIS_URL: {problem}") from error
    except (TypeError, ValueError, RedisError):
        problem = "its query has an option that redis-py does not know, or a bad value of one"
        raise SettingsError(f"REDIS_URL: {problem}") from None
    return pool


def _options(retry: AsyncRetry | Retry) -> dict[str, Any]:
    # RESP2: the replies of scripts are the same in both, and INFO and XREAD have one shape to parse.
    return {
        "socket_connect_timeout": CONNECT_S,
        "socket_timeout": None,
        "retry": retry,
        "retry_on_timeout": False,
        "retry_on_error": [],
        "health_check_interval": 0,
        "protocol": 2,
    }
