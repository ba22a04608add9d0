"""Times of the queue's scripts as the broker measures them: its SLOWLOG, set so low that it misses next to none.

A script's time there is what it holds every other caller up. Calls that are shorter than `LEAST_US` are not seen.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import redis

from shared.queue.loader import NAMES, Script, load

LEAST_US = 20
ENTRIES = 200_000


def scripts() -> list[Script]:
    """All that a queue runs: several runs of one may travel as one command, which is a script of its own."""
    alone = [load(name) for name in NAMES]
    return alone + [script.several for script in alone if script.several is not None]


class SlowLog:
    """`fetch` before the log overflows. Its settings go with the broker, which is the bench's own."""

    def __init__(self, redis_url: str) -> None:
        self._client: Any = redis.Redis.from_url(redis_url)
        self._names = {script.sha.encode(): script.name for script in scripts()}
        self.times_ms: dict[str, list[float]] = defaultdict(list)

    def start(self) -> None:
        self._client.config_set("slowlog-max-len", ENTRIES)
        self._client.config_set("slowlog-log-slower-than", LEAST_US)
        self._client.slowlog_reset()

    def fetch(self) -> None:
        with self._client.pipeline(transaction=True) as both:
            both.slowlog_get(ENTRIES)
            both.slowlog_reset()
            entries, _ = both.execute()
        for entry in entries:
            command, _, rest = entry["command"].partition(b" ")
            name = self._names.get(rest[:40]) if command == b"EVALSHA" else None
            if name is not None:
                self.times_ms[name].append(entry["duration"] / 1000)

    def close(self) -> None:
        self._client.close()
