"""Every key of the queue, named once. All keys of a shard share one hash tag, so one slot holds them."""

from __future__ import annotations


class Keys:
    """Keys of one shard of one queue; `fixed` are those that scripts name in their headers."""

    def __init__(self, queue: str, shard: int = 0) -> None:
        self.prefix = f"sl:{{{queue}:{shard}}}"

    def fixed(self, name: str) -> str:
        """`in`, `live`, `ready:0`, … exactly as a script's header spells it."""
        return f"{self.prefix}:{name}"

    def outcome(self, rid: str) -> str:
        return f"{self.prefix}:res:{rid}"

    def body(self, rid: str) -> str:
        return f"{self.prefix}:body:{rid}"

    def group(self, parent: str) -> str:
        return f"{self.prefix}:grp:{parent}"

    def out(self, api_id: str) -> str:
        return f"{self.prefix}:out:{api_id}"

    def part(self, rid: str) -> str:
        return f"{self.prefix}:part:{rid}"

    def ctl(self, worker_id: str) -> str:
        return f"{self.prefix}:ctl:{worker_id}"
