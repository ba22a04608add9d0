"""Whether a broker can be trusted with requests: what it says of itself, and what is wrong with that."""

from __future__ import annotations

import re

import msgspec

from shared.queue.keys import Keys
from shared.queue.line import Line

LAYOUT = 1  # of keys and records; written by tick
OLDEST = (7, 0)  # scripts with flags came with it


class Fitness(msgspec.Struct, frozen=True):
    """`version` is the Redis release that it is compatible with; `layout` None on a fresh queue."""

    version: str
    maxmemory: int
    policy: str
    is_persistent: bool
    layout: int | None

    @property
    def problem(self) -> str | None:
        """Why it must not be used; None if it may."""
        known = tuple(map(int, re.findall(r"\d+", self.version)[:2]))
        if known and known < OLDEST:
            oldest = ".".join(map(str, OLDEST))
            return f"the broker is release {self.version}; {oldest} is the oldest that will do"
        if self.maxmemory and self.policy != "noeviction":
            return (
                f"the broker evicts keys, and requests with them (maxmemory-policy {self.policy}); "
                "set it to noeviction"
            )
        if self.layout is not None and self.layout != LAYOUT:
            return f"the queue has layout {self.layout}, written by another release; this one knows {LAYOUT}"
        return None

    @property
    def warning(self) -> str | None:
        if self.is_persistent:
            return None
        return "the broker keeps nothing on disk: a restart of it loses every request (set appendonly yes)"


async def look_at(line: Line, keys: Keys, *, patient: bool = False) -> Fitness:
    """Asks by INFO, which managed brokers answer too. Raises BrokerUnavailable."""
    info = (await line.run(("INFO",), patient=patient)).decode()
    fields = dict(row.split(":", 1) for row in info.splitlines() if ":" in row)
    layout = await line.run(("HGET", keys.fixed("flags"), "layout"), patient=patient)
    return Fitness(
        version=fields.get("redis_version", ""),
        maxmemory=int(fields.get("maxmemory", 0)),
        policy=fields.get("maxmemory_policy", "noeviction"),
        # A broker that has saved, or is about to, keeps snapshots.
        is_persistent=fields.get("aof_enabled") == "1" or fields.get("rdb_saves", "0") != "0",
        layout=None if layout is None else int(layout),
    )
