"""The broker as an operator sees it: what it holds of unfinished requests, and the commands of some faults."""

from __future__ import annotations

from typing import Any

import redis.asyncio as aioredis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

LIMIT_S = 2.0
# Of each shard: what holds nothing once no request lives, and no list is half there.
READY = tuple(f"ready:{lane}" for lane in "012RS")
UNFINISHED = ("in", "live", "lease", "when", "later", "deps", "resv", *READY)


class Store:
    """Every call raises RedisError or OSError where the broker is away, and is not tried again."""

    def __init__(self, url: str, queue: str, shards: int) -> None:
        self._prefixes = [f"sl:{{{queue}:{shard}}}:" for shard in range(shards)]
        self._client: Any = aioredis.Redis.from_url(
            url,
            socket_timeout=LIMIT_S,
            socket_connect_timeout=LIMIT_S,
            retry=Retry(NoBackoff(), 0),
        )

    async def close(self) -> None:
        await self._client.aclose()

    async def answers(self) -> bool:
        try:
            return bool(await self._client.ping())
        except (RedisError, OSError):
            return False

    # --- faults

    async def flush_scripts(self) -> None:
        await self._client.script_flush()

    async def flush_all(self) -> None:
        await self._client.flushall()

    async def kill_clients(self) -> int:
        """How many connections were cut; this one is spared."""
        return int(
            await self._client.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        )

    async def limit_memory(self, limit_bytes: int) -> None:
        """0: no limit."""
        await self._client.config_set("maxmemory", limit_bytes)

    # --- what is there

    async def live(self) -> int:
        """Requests that have not ended."""
        return sum([await self._client.hlen(key) for key in self._keys("live")])

    async def reserved(self) -> int:
        """Lists that are half there."""
        return sum([await self._client.zcard(key) for key in self._keys("resv")])

    async def is_half_there(self, parent: str) -> bool:
        """Whether room is kept for items of this list that have not come."""
        for prefix in self._prefixes:
            n, submitted = await self._client.hmget(f"{prefix}grp:{parent}", "n", "submitted")
            if n is not None:
                return int(submitted) < int(n)
        return False

    async def left(self) -> dict[str, tuple[str, ...]]:
        """Ids that unfinished work still names, and by which keys; and room in the queue that nobody gave back."""
        found: dict[str, list[str]] = {}
        for name in UNFINISHED:
            for key in self._keys(name):
                for rid in await self._ids(key):
                    found.setdefault(rid.decode(), []).append(key)
        for prefix in self._prefixes:
            # A list that is half there keeps its room, and is named itself.
            if not await self._client.exists(prefix + "resv"):
                for name, value in (await self._client.hgetall(prefix + "ten")).items():
                    if value != b"0":
                        room = f"room {name.decode()}={value.decode()}"
                        found.setdefault(room, []).append(prefix + "ten")
        return {rid: tuple(keys) for rid, keys in found.items()}

    async def letters(self) -> frozenset[str]:
        """Ids of the requests among the dead letters."""
        ids = [rid for key in self._keys("dlq") for rid in await self._ids(key)]
        return frozenset(rid.decode() for rid in ids)

    async def _ids(self, key: str) -> list[bytes]:
        kind = await self._client.type(key)
        if kind == b"hash":
            return list(await self._client.hkeys(key))
        if kind == b"stream":
            return [fields[b"i"] for _, fields in await self._client.xrange(key)]
        return list(await self._client.zrange(key, 0, -1))

    def _keys(self, name: str) -> list[str]:
        return [prefix + name for prefix in self._prefixes]
