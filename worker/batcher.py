"""Pure: claimed requests to micro-batches, by bucket key or by what an engine's rows must share. Knows no queue,
no engine and no clock but its argument.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from shared.queue.claiming import Grant
from shared.request import Req
from shared.sampling import SamplingParams


class Item(msgspec.Struct, frozen=True):
    """One granted request. `deadline_at` is on the worker's monotonic clock."""

    grant: Grant
    req: Req
    deadline_at: float


class MicroBatch(msgspec.Struct, frozen=True):
    """Requests that go to the engine in one call, under one id. They share `params`, the first one's, but
    for fields in which the engine's rows may differ: there each request's own count.
    """

    id: str
    params: SamplingParams
    items: tuple[Item, ...]

    def __len__(self) -> int:
        return len(self.items)

    @property
    def bucket_key(self) -> str:
        """The first one's; all have it unless the engine's rows may differ."""
        return self.items[0].req.bucket_key


class Batcher:
    """Numbers the batches of one worker: `<worker>-<count>`. `rows_share` is the engine's: with it buckets that
    are equal in those fields go together; empty, each bucket goes by itself.
    """

    def __init__(
        self, worker_id: str, max_size: int, rows_share: frozenset[str] = frozenset()
    ) -> None:
        self._worker_id = worker_id
        self._max_size = max(1, max_size)
        self._rows_share = rows_share
        self._count = 0

    def partition(self, items: Sequence[Item]) -> list[MicroBatch]:
        """Batches in order of first appearance, requests in order inside; none above the size limit.

        Each batch is handed over as a unit and without waiting for the others.
        """
        together: dict[object, list[Item]] = {}
        by_bucket: dict[str, list[Item]] = {}
        for item in items:
            bucket = item.req.bucket_key
            if bucket not in by_bucket:
                by_bucket[bucket] = together.setdefault(self._key(item.req), [])
            by_bucket[bucket].append(item)
        batches = []
        for members in together.values():
            for start in range(0, len(members), self._max_size):
                part = tuple(members[start : start + self._max_size])
                self._count += 1
                name = f"{self._worker_id}-{self._count}"
                batches.append(MicroBatch(name, part[0].req.sampling, part))
        return batches

    def _key(self, req: Req) -> object:
        return req.sampling.batch_key(self._rows_share) if self._rows_share else req.bucket_key
