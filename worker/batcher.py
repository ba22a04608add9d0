"""Pure: claimed requests to micro-batches by bucket key. Knows no queue, no engine and no clock but its argument."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from shared.queue.consumer import Grant
from shared.request import Req
from shared.sampling import SamplingParams


class Item(msgspec.Struct, frozen=True):
    """One granted request. `deadline_at` is on the worker's monotonic clock."""

    grant: Grant
    req: Req
    deadline_at: float


class MicroBatch(msgspec.Struct, frozen=True):
    """Requests that share every engine-visible field, and so one parameter object, under one id."""

    id: str
    bucket_key: str
    params: SamplingParams
    items: tuple[Item, ...]

    def __len__(self) -> int:
        return len(self.items)


class Batcher:
    """Numbers the batches of one worker: `<worker>-<count>`."""

    def __init__(self, worker_id: str, max_size: int) -> None:
        self._worker_id = worker_id
        self._max_size = max(1, max_size)
        self._count = 0

    def partition(self, items: Sequence[Item]) -> list[MicroBatch]:
        """Buckets in order of first appearance, requests in order inside; none above the size limit.

        Each batch is handed over as a unit and without waiting for the others.
        """
        buckets: dict[str, list[Item]] = {}
        for item in items:
            buckets.setdefault(item.req.bucket_key, []).append(item)
        batches = []
        for key, members in buckets.items():
            for start in range(0, len(members), self._max_size):
                part = tuple(members[start : start + self._max_size])
                self._count += 1
                name = f"{self._worker_id}-{self._count}"
                batches.append(MicroBatch(name, key, part[0].req.sampling, part))
        return batches
