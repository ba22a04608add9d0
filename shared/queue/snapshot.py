"""What the front door is told by the queue's scripts, as records. No I/O."""

from __future__ import annotations

from typing import Any

import msgspec

from shared import codec
from shared.errors import CodecError
from shared.request import Outcome, Record


class Caps(msgspec.Struct, frozen=True):
    """Bounds of what may be live at once, over all replicas; 0 means none."""

    requests: int = 0
    tokens: int = 0
    tenant_requests: int = 0
    tenant_tokens: int = 0

    def share(self, shards: int) -> list[int]:
        """What of each falls to one shard, rounded up; 0 stays none."""
        all_caps = (self.requests, self.tokens, self.tenant_requests, self.tenant_tokens)
        return [-(-cap // shards) for cap in all_caps]


class Submitted(msgspec.Struct, frozen=True):
    """`position`: how many are ahead, None while it is not queued yet, or not asked for by who waits for its answer.
    `joined`: the id was there already, with the same body. `submitted_ms` is by the server's clock.
    """

    id: str
    position: int | None
    submitted_ms: int
    joined: bool


class Group(msgspec.Struct, frozen=True):
    """A list that has not ended: how many of its children were submitted and have ended.
    `created_ms` is by the server's clock.
    """

    n: int
    submitted: int
    terminal: int
    cancelled: bool
    digest: str
    tenant: str
    created_ms: int
    delivery_json: str
    apis: tuple[str, ...] = ()


class Snapshot(msgspec.Struct, frozen=True):
    """What is known of an id in one step: exactly one of a live record, an outcome, a live list.

    `now_ms` is the queue's clock, which its own times are compared with; `wall_ms` is the server's.
    """

    id: str
    now_ms: int
    wall_ms: int = 0
    record: Record | None = None
    outcome: Outcome | None = None
    group: Group | None = None
    position: int | None = None

    @property
    def tenant(self) -> str:
        known = self.record or self.outcome or self.group
        return known.tenant if known is not None else ""

    @property
    def digest(self) -> str:
        known = self.record or self.outcome or self.group
        return known.digest if known is not None else ""


def parse_snapshot(rid: str, reply: list[Any]) -> Snapshot | None:
    """The reply of `peek`; None for an id of which nothing is known. Raises CodecError."""
    kind, value = reply[1], reply[2]
    now_ms, ahead, wall_ms = int(reply[0]), int(reply[3]), int(reply[4])
    if kind == b"live":
        record = codec.decode_record(value)
        return Snapshot(rid, now_ms, wall_ms, record=record, position=ahead if ahead >= 0 else None)
    if kind == b"done":
        return Snapshot(rid, now_ms, wall_ms, outcome=codec.decode_outcome(value))
    if kind == b"group":
        try:
            return Snapshot(rid, now_ms, wall_ms, group=_group(value))
        except (KeyError, ValueError) as error:
            raise CodecError(f"not a list: {error!r}", b"") from error
    return None


def _group(flat: list[bytes]) -> Group:
    fields = {flat[i].decode(): flat[i + 1].decode() for i in range(0, len(flat), 2)}
    return Group(
        n=int(fields["n"]),
        submitted=int(fields["submitted"]),
        terminal=int(fields["terminal"]),
        cancelled=fields["cancelled"] == "1",
        digest=fields["digest"],
        tenant=fields["tenant"],
        created_ms=int(fields["at"]),
        delivery_json=fields["delivery"],
        apis=tuple(api for api in fields["apis"].split(",") if api),
    )
