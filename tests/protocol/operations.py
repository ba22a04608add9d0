"""What may happen to a shard, in one word each: the vocabulary of the random schedule and of the state machine.

Every argument is chosen by the caller; nothing here is drawn. `times` 2 is a call whose first reply was lost.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from shared.request import Record
from tests.protocol.history import History, Limits
from tests.protocol.twin import Twin
from tests.queue.harness import INFO, LEASE_MS, NO_CAPS, TTL_MS, Shard

BODY_TTL_MS = 120_000
PART_TTL_MS = 240_000
LETTERS_MAX_BYTES = 2000
MAX_ATTEMPTS, MAX_CRASHES, MAX_IDLE_GRANTS = 2, 2, 3


class Handle(msgspec.Struct, frozen=True):
    """One grant that a worker was told of; it may be dead by now."""

    wid: str
    rid: str
    token: str
    grants: int
    apis: tuple[str, ...] = ()


def handle_of(wid: str, grant: list[str]) -> Handle:
    apis = tuple(api for api in grant[6].split(",") if api)
    return Handle(wid, grant[0], grant[1], int(grant[3]), apis)


class Wish(msgspec.Struct, frozen=True):
    """What a client asks for."""

    lane: int = 1
    tenant: str = "anonymous"
    tokens: int = 10
    timeout_ms: int = 600_000
    queue_timeout_ms: int = 600_000
    api: str = "api"
    digest: str = "d"
    after: tuple[str, ...] = ()
    not_before_ms: int = 0
    weight: float = 1
    is_held: bool = False
    caps: tuple[int, int, int, int] = NO_CAPS
    payload: bytes = b"payload"

    @property
    def meta(self) -> list[Any]:
        first = [self.lane, self.tenant, self.tokens, self.timeout_ms, self.queue_timeout_ms]
        then = [self.api, "{}", self.digest, list(self.after), "", ""]
        return [*first, *then, self.not_before_ms, self.weight, int(self.is_held)]


class Operations(Twin):
    """`rids` are all ids ever asked for, `handles` all grants ever told, `apis` those that ticked once."""

    def __init__(self, shard: Shard, **options: Any) -> None:
        limits = Limits(MAX_ATTEMPTS, MAX_CRASHES, LETTERS_MAX_BYTES)
        super().__init__(shard, History(limits), **options)
        self.rids: list[str] = []
        self.parents: list[str] = []
        self.handles: list[Handle] = []
        self.apis: list[str] = []
        self.seqs: dict[str, int] = {}
        self.texts: dict[Handle, str] = {}

    # Clients and front doors

    def submit(self, rid: str, wish: Wish, times: int = 1) -> str:
        reply = self.call("submit", rid, wish.payload, wish.meta, wish.caps, times=times)
        return self._accepted(rid, wish, reply)

    def crowd(self, rids: Sequence[str], wish: Wish) -> str:
        """Submits them one after the other until one is refused; the last reply."""
        word = ""
        for rid in rids:
            args = (rid, wish.payload, wish.meta, wish.caps)
            word = self._accepted(rid, wish, self.unseen("submit", *args))
            if word != "OK":
                break
        self.tick()
        return word

    def requeue(self, letter: str, rid: str, wish: Wish, times: int = 1) -> str:
        args = (letter, rid, wish.payload, wish.meta, wish.caps)
        return self._accepted(rid, wish, self.call("requeue_letter", *args, times=times))

    def _accepted(self, rid: str, wish: Wish, reply: list[Any]) -> str:
        if reply[0] == "OK":
            self.history.note_accepted([rid], wish.payload)
            self.history.note_room(wish.tenant, wish.caps)
        if rid not in self.rids and reply[0] in ("OK", "DUP", "DONE"):
            self.rids.append(rid)
        return str(reply[0])

    def reserve(self, parent: str, n: int, wish: Wish, times: int = 1) -> str:
        args = (parent, n, n * wish.tokens, wish.tenant, wish.digest, wish.api, "{}", wish.caps)
        reply = self.call("reserve", *args, times=times)
        if reply[0] == "OK":
            self.parents.append(parent)
            self.history.note_room(wish.tenant, wish.caps)
        return str(reply[0])

    def bring(self, parent: str, start: int, n: int, wish: Wish, times: int = 1) -> str:
        children = [(wish.payload, wish.tokens, "{}")] * n
        reply = self.call("submit_many", parent, start, wish.meta, children, times=times)
        if reply[0] == "OK":
            rids = [f"{parent}.{i}" for i in range(start, start + n)]
            self.rids += rids
            self.history.note_accepted([*rids, parent], wish.payload)
        return str(reply[0])

    def peek(self, rid: str) -> None:
        self.call("peek", rid)

    def attach(self, rid: str, api: str, at: str = "0-0", n: int = 0, times: int = 1) -> None:
        self.call("attach", rid, api, at, n, times=times)

    def notify(self, rid: str, api: str, inline_max: int = 1024, times: int = 1) -> None:
        for _ in range(times):
            self.history.note_notified(rid, api)
        self.call("notify", rid, api, inline_max, times=times)

    def tick(self, api: str | None = None, times: int = 1) -> None:
        self.call("tick", LEASE_MS, api, times=times)
        if api is not None and api not in self.apis:
            self.apis.append(api)

    def drop(self, rids: Sequence[str], times: int = 1) -> None:
        self.call("drop", rids, times=times)

    def drop_letter(self, letter: str, times: int = 1) -> None:
        self.call("drop_letter", letter, times=times)

    def end(
        self,
        rid: str,
        how: str,
        *,
        wid: str | None = None,
        apis: Sequence[str] | None = None,
        times: int = 1,
    ) -> str:
        """`wid` and `apis` are what the caller believes of it; by default what is so."""
        record = self.state.live.get(rid)
        owner = (record.worker if record else "") if wid is None else wid
        declared = (record.apis if record else []) if apis is None else apis
        code = "cancelled" if how == "cancel" else ""
        args = (rid, how, code, "", owner, TTL_MS, declared, self.parent_of(rid))
        kept = {"part_ttl_ms": PART_TTL_MS, "letters_max_bytes": LETTERS_MAX_BYTES}
        reply = self.call("end", *args, **kept, times=times)
        if reply[0] == "OK":
            for api in reply[3:]:
                self.notify(self.parent_of(rid) or rid, api)
        return str(reply[0])

    def end_missing(self, parent: str, state: str, times: int = 1) -> str:
        group = self.state.groups.get(parent, {"n": "1", "submitted": "0"})
        start = int(group["submitted"])
        count = min(int(group["n"]) - start, 64)
        code = "cancelled" if state == "C" else "submit_incomplete"
        apis = [api for api in group.get("apis", "").split(",") if api]
        args = (parent, state, code, start, count, TTL_MS, apis)
        reply = self.call("end_missing", *args, times=times)
        return str(reply[0])

    # Workers

    def claim(
        self,
        wid: str,
        n: int,
        *,
        is_idle: bool = True,
        step: int = 1,
        slots: int = 8,
        max_bytes: int = 1 << 22,
        times: int = 1,
    ) -> list[Handle]:
        """`step` 1 is the worker's next claim, 0 the last one again, -1 a late copy of one before it."""
        seq = max(self.seqs.get(wid, 0) + step, 1)
        before = self.state
        args = (wid, seq, n, max_bytes, LEASE_MS, is_idle, slots)
        reply = self.call("claim", *args, times=times)
        grants = [handle_of(wid, grant) for grant in reply[5:]]
        if seq > self.seqs.get(wid, 0):
            self.seqs[wid] = seq
            for handle in grants:
                self.history.note_granted(handle.rid, wid, handle.token)
            self.history.note_order(before, [handle.rid for handle in grants])
            self.handles += grants
        return grants

    def beat(
        self,
        wid: str,
        held: Sequence[Handle],
        *,
        is_started: bool = True,
        seq: int | None = None,
        times: int = 1,
    ) -> list[str]:
        """Replies the ids that the worker has lost."""
        seen = self.seqs.get(wid, 0) if seq is None else seq
        before, tokens = self.state, {handle.rid: handle.token for handle in held}
        told = {rid: (token, is_started) for rid, token in tokens.items()}
        lost: list[str] = self.call("beat", wid, LEASE_MS, seen, INFO, told, times=times)[3]
        self.history.note_beat(before, wid, tokens, lost)
        return lost

    def emit(
        self,
        handle: Handle,
        data: str,
        *,
        offset: int | None = None,
        apis: Sequence[str] | None = None,
        times: int = 1,
    ) -> str:
        """The next piece of its text, or one from `offset` on."""
        text = self.texts.get(handle, "")
        at = len(text) if offset is None else offset
        declared = handle.apis if apis is None else apis
        before, piece = self.state, (handle.rid, handle.token, at, data)
        reply = self.call("emit", handle.wid, declared, [piece], times=times)
        verdict = reply[0] if reply == ["OOM"] else reply[0][0]
        if verdict in ("OK", "NOBODY"):
            self.history.note_running(before, handle.rid, handle.wid, handle.token)
            if data:
                self.history.note_piece(before, handle.rid, handle.token, declared)
            if at == len(text):
                self.texts[handle] = text + data
        return str(verdict)

    def finish(
        self,
        handle: Handle,
        *,
        state: str = "F",
        code: str = "",
        inline_max: int = 1024,
        apis: Sequence[str] | None = None,
        times: int = 1,
    ) -> str:
        text = self.texts.get(handle, "hi")
        body = None if state == "E" else text.encode()
        declared = handle.apis if apis is None else apis
        what = (state, code, "", "{}", body)
        lives = (TTL_MS, BODY_TTL_MS, inline_max)
        args = (handle.rid, handle.wid, handle.token, *what, *lives, declared)
        parent = self.parent_of(handle.rid)
        kept = {"letters_max_bytes": LETTERS_MAX_BYTES}
        reply = self.call("finish", *args, parent, **kept, times=times)
        if reply[0] == "OK":
            self.history.note_taken(handle.rid, handle.wid, handle.token)
            if handle in self.texts:
                self.history.note_text(handle.rid, handle.token, text)
            for api in reply[2:]:
                self.notify(parent or handle.rid, api)
        return str(reply[0])

    def nack(self, handle: Handle, how: str, delay_ms: int = 500, times: int = 1) -> str:
        limits = {"max_attempts": MAX_ATTEMPTS, "max_crashes": MAX_CRASHES, "delay_ms": delay_ms}
        before, held = self.state, [(handle.rid, handle.token)]
        (verdict,) = self.call("nack", handle.wid, how, "why", held, **limits, times=times)
        if verdict != "LOST":
            self.history.note_running(before, handle.rid, handle.wid, handle.token)
            self.history.note_returned(handle.rid)
        return str(verdict)

    def settle(self, handle: Handle, times: int = 1) -> str:
        args = (handle.rid, handle.wid, handle.token, '{"usage":{}}', 7)
        verdict = str(self.call("settle", *args, times=times)[0])
        if verdict == "OK":
            self.history.note_taken(handle.rid, handle.wid, handle.token)
        return verdict

    # Upkeep

    def reap(self, n: int = 100, times: int = 1) -> None:
        self.call("reap", n, MAX_CRASHES, MAX_IDLE_GRANTS, times=times)

    def promote(self, n: int = 100, times: int = 1) -> None:
        self.call("promote", n, times=times)

    def prune(self, silent_ms: int = 4 * LEASE_MS) -> None:
        self.call("prune", silent_ms)

    def sweep(self, n: int = 100, times: int = 1) -> None:
        """And what the housekeeper does with what it is handed."""
        due, parents = self.call("sweep", n, times=times)
        for rid in due:
            if self.end(rid, "expire") == "NOTDUE":
                self.end(rid, "dead")
        for parent in parents:
            is_cancelled = self.state.groups[parent]["cancelled"] == "1"
            self.end_missing(parent, "C" if is_cancelled else "E")
            if is_cancelled:
                self.cancel_children(parent)

    def cancel_children(self, parent: str) -> None:
        for i in range(int(self.state.groups[parent]["n"])):
            if f"{parent}.{i}" in self.state.live:
                self.end(f"{parent}.{i}", "cancel")

    # The world around

    def advance(self, ms: int) -> None:
        """With a tick now and then, as the housekeepers do, so that it counts as neither pause nor step."""
        while ms > 0:
            self.shard.scripts.at_ms += min(ms, 4000)
            ms -= 4000
            if ms > 0:
                self.unseen("tick", LEASE_MS)
            else:
                self.call("tick", LEASE_MS)

    def jump(self, ms: int) -> None:
        """The server's clock is set, or stood still: nobody ticked meanwhile."""
        self.shard.scripts.at_ms += ms

    def flush_scripts(self) -> None:
        self.shard.client.script_flush()

    def set_memory_full(self, is_full: bool) -> None:
        self.shard.client.config_set("maxmemory", 1 if is_full else 0)
        self.is_memory_full = is_full
        if self.model is not None:
            self.model.is_memory_full = is_full

    def set_flag(self, name: str, value: str | None) -> None:
        """An operator's wish: `paused`, or `drain:<worker>`."""
        key = self.shard.keys.fixed("flags")
        flags = self.model.state.flags if self.model else {}
        flags.pop(name, None)
        if value is None:
            self.shard.client.hdel(key, name)
        else:
            self.shard.client.hset(key, name, value)
            flags[name] = value
        self.look()

    def hear_bell(self) -> None:
        """A waiting worker takes the ring."""
        self.shard.client.delete(self.shard.keys.fixed("bell"))
        if self.model is not None:
            self.model.state.sets["bell"].clear()
        self.look()

    def lose_entry(self, rid: str) -> None:
        """Somebody removes a stream entry by hand."""
        raw = self.shard.client.hget(self.shard.keys.fixed("live"), rid)
        if raw is not None:
            self.history.note_robbed(rid)
            self.shard.client.xdel(self.shard.keys.fixed("in"), _records.decode(raw).entry_id)
            if self.model is not None:
                self.model.lose_entry(rid)
            self.look()

    def is_owner(self, handle: Handle) -> bool:
        record = self.state.live.get(handle.rid)
        return record is not None and (record.worker, record.token) == (handle.wid, handle.token)

    def parent_of(self, rid: str) -> str:
        return next((p for p in self.parents if rid.startswith(f"{p}.")), "")


_records = msgspec.msgpack.Decoder(Record)
