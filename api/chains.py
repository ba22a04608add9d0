"""Chains: from the client's names for what a request depends on to ids of the queue, in its placeholders too."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from shared.errors import (
    ChainAcrossShards,
    IdempotencyMismatch,
    InvalidRequest,
    RefusedPredecessor,
)
from shared.placeholders import changed, names_in, renamed
from shared.queue.producer import Producer
from shared.request import Message


@dataclass(frozen=True, slots=True)
class Chain:
    """Whom one request depends on. `ids` are the queue's, by the client's names for them; all live in `shard`."""

    ids: Mapping[str, str]
    shard: int

    @classmethod
    async def find(cls, names: Sequence[str], tenant: str, producer: Producer) -> Chain:
        """An id of the queue as it is, any other as the one that PUT made of it. Raises ChainAcrossShards."""
        ids = {}
        for name in names:
            own = producer.derived_id(tenant, "id", name)
            ids[name] = name if producer.holds(name) else await producer.located(own)
        shards = {producer.shard_of(rid) for rid in ids.values()}
        if len(shards) > 1:
            message = "depends_on: these requests live in different shards of the queue"
            raise ChainAcrossShards(message, param="depends_on")
        return cls(ids, shards.pop())

    @property
    def predecessors(self) -> tuple[str, ...]:
        """Each once, though it may have two names."""
        return tuple(dict.fromkeys(self.ids.values()))

    async def place(self, rid: str | None, producer: Producer) -> str:
        """The request's own id, in the shard of those that it depends on. `rid` None: it has none yet."""
        if rid is None:
            return producer.new_id(self.shard)
        placed = producer.in_shard(rid, self.shard)
        if placed in self.ids.values():
            raise InvalidRequest("depends_on: names this request itself", param="depends_on")
        if placed != rid and await producer.peek(rid) is not None:
            # It is known elsewhere, so without these predecessors.
            raise IdempotencyMismatch("this id was used with another body", param="id")
        return placed

    def text(self, param: str, text: str) -> str:
        """With ids of the queue in its placeholders. Raises InvalidRequest for one that names none of them."""
        for name in names_in(text):
            if name not in self.ids:
                raise InvalidRequest(f"{param}: {name} is not in depends_on", param=param)
        return renamed(text, self.ids)

    def messages(self, messages: tuple[Message, ...]) -> tuple[Message, ...]:
        return changed(messages, lambda text: self.text("messages", text))

    def refused(self, error: RefusedPredecessor) -> InvalidRequest:
        """By the client's own name for it."""
        name = next((n for n, rid in self.ids.items() if rid == error.predecessor), "")
        return InvalidRequest(f"depends_on: {name}: {error.why}", param="depends_on")
