"""The shards of one queue: their scripts, and which of them an id lives in. No I/O.

A shard is a whole queue of its own in one hash slot; nothing is ordered or counted across shards but by whoever asks
all of them.
"""

from __future__ import annotations

import base64
import hashlib
import itertools
from collections.abc import Iterable, Iterator

from ulid import ULID

from shared.queue.keys import Keys
from shared.queue.scripts import Scripts
from shared.request import queue_and_shard


class Shards:
    """Numbered from 0. An id says its shard, so any process can route it."""

    def __init__(self, queue: str, count: int) -> None:
        self._queue = queue
        self._all = tuple(Scripts(Keys(queue, shard)) for shard in range(count))
        self._turns = itertools.cycle(range(count))

    def __len__(self) -> int:
        return len(self._all)

    def __iter__(self) -> Iterator[Scripts]:
        return iter(self._all)

    def __getitem__(self, shard: int) -> Scripts:
        return self._all[shard]

    def new_id(self, shard: int | None = None) -> str:
        """In the shard that is named, else in each in turn."""
        place = next(self._turns) if shard is None else shard
        return f"{self._queue}.{place}-{str(ULID()).lower()}"

    def derived_id(self, tenant: str, kind: str, key: str) -> str:
        """The same for the same tenant and key, and out of reach for every other tenant."""
        digest = hashlib.blake2b("\0".join((tenant, kind, key)).encode(), digest_size=20).digest()
        place = int.from_bytes(digest[:8], "big") % len(self._all)
        return f"{self._queue}.{place}-{base64.b32encode(digest).decode().lower()}"

    def in_shard(self, rid: str, shard: int) -> str:
        """The same id, but for where it lives."""
        key = rid[len(self._queue) + 1 :].partition("-")[2]
        return f"{self._queue}.{shard}-{key}"

    def holds(self, rid: str) -> bool:
        """Whether it is an id that this queue, as it is set up here, can have given out."""
        place = queue_and_shard(rid)
        return place is not None and place[0] == self._queue and place[1] < len(self._all)

    def number(self, rid: str) -> int:
        """Of an id that `holds` is true of. Raises KeyError for another."""
        if len(self._all) == 1:
            return 0
        if not self.holds(rid):
            raise KeyError(rid)
        place = queue_and_shard(rid)
        return place[1] if place else 0

    def of(self, rid: str) -> Scripts:
        return self._all[self.number(rid)]

    def split(self, rids: Iterable[str]) -> list[tuple[Scripts, list[str]]]:
        """The ids of each shard, in their order; shards without any are left out."""
        if len(self._all) == 1:
            one = list(rids)
            return [(self._all[0], one)] if one else []
        parts: dict[int, list[str]] = {}
        for rid in rids:
            parts.setdefault(self.number(rid), []).append(rid)
        return [(self._all[shard], part) for shard, part in parts.items()]
