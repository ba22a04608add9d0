"""What a broker holds of a queue: structures, keys, memory. Looks at the bare broker and changes nothing."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import redis

from bench.stack import QUEUE
from shared.queue.keys import Keys
from shared.queue.loader import NAMES, load

# What is empty when no request is live, and the command that counts it.
LIVE = {
    "in": "XLEN",
    "live": "HLEN",
    **dict.fromkeys(
        ("ready:0", "ready:1", "ready:2", "ready:R", "ready:S", "later", "lease", "when", "resv"),
        "ZCARD",
    ),
    "deps": "HLEN",
}
A_PROCESS = re.compile(r"(out|ctl):[^:]+")


@dataclass(frozen=True)
class Memory:
    """Bytes. `dataset` leaves out tables of keys, buffers of connections and the like."""

    used: int
    dataset: int


class Remains:
    """One look is one connection's work; `close` at the end."""

    def __init__(self, redis_url: str) -> None:
        self._client: Any = redis.Redis.from_url(redis_url)
        self._keys = Keys(QUEUE)

    def close(self) -> None:
        self._client.close()

    def live(self) -> dict[str, int]:
        """How many each structure of live requests holds."""
        return {
            name: int(self._client.execute_command(command, self._keys.fixed(name)))
            for name, command in LIVE.items()
        }

    def names(self) -> list[str]:
        """Every key, without the queue's own prefix."""
        prefix = f"{self._keys.prefix}:"
        found = (key.decode() for key in self._client.scan_iter(count=1000))
        return sorted(name.removeprefix(prefix) for name in found)

    def other_clients(self) -> int:
        """Connections that the broker serves, without this one."""
        return len(self._client.client_list()) - 1

    def memory(self) -> Memory:
        told = self._client.info("memory")
        return Memory(int(told["used_memory"]), int(told["used_memory_dataset"]))


def fixed_names() -> set[str]:
    """The keys that a queue has whatever it has served: those that scripts name in their headers."""
    return {key for name in NAMES for key in load(name).fixed}


def beyond(names: Iterable[str]) -> list[str]:
    """Keys that belong to a request. A process that runs has one of its own too, as long as it does."""
    fixed = fixed_names()
    return [name for name in names if name not in fixed and not A_PROCESS.fullmatch(name)]
