"""Gives each script a typed face; knows keys and arguments, not connections."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from shared import codec
from shared.queue.keys import Keys
from shared.queue.loader import NAMES, Script, load

Arg = str | bytes | int | float


class Call(msgspec.Struct, frozen=True):
    """One run of a script, ready to be sent, and to be sent again."""

    script: Script
    keys: tuple[str, ...]
    args: tuple[Arg, ...]

    def __repr__(self) -> str:
        return f"Call({self.script.name}, {len(self.keys)} keys, {len(self.args)} arguments)"

    @property
    def command(self) -> tuple[Arg, ...]:
        return ("EVALSHA", self.script.sha, len(self.keys), *self.keys, *self.args)

    @property
    def loading_command(self) -> tuple[Arg, ...]:
        """For a server that does not have the script: it is there from this run on."""
        return ("EVAL", self.script.source, len(self.keys), *self.keys, *self.args)


class Scripts:
    """Every script over one shard's keys. `at_ms` 0 means the server's clock; tests inject another."""

    def __init__(self, keys: Keys, at_ms: int = 0) -> None:
        self.keys = keys
        self.at_ms = at_ms
        self._scripts = {name: load(name) for name in NAMES}
        self._fixed = {
            name: tuple(keys.fixed(key) for key in script.fixed)
            for name, script in self._scripts.items()
        }

    def _call(self, name: str, extra: Sequence[str], *args: Arg) -> Call:
        return Call(self._scripts[name], (*self._fixed[name], *extra), (self.at_ms, *args))

    def _terminal_keys(self, rid: str, parent: str, *more: str) -> list[str]:
        k = self.keys
        return [
            k.outcome(rid),
            k.body(rid),
            k.part(rid),
            k.group(parent or rid),
            k.outcome(parent or rid),
            *more,
        ]

    def _predecessor_keys(self, preds: Sequence[str]) -> list[str]:
        return [key for pred in preds for key in (self.keys.outcome(pred), self.keys.body(pred))]

    def submit(self, rid: str, payload: bytes, meta: Sequence[Any], caps: Sequence[int]) -> Call:
        """Reply: [OK, position, at] [DUP, position, at] [DONE] [MISMATCH] [FULL, which, queued]
        [UNKNOWN, predecessor] [CROWDED, predecessor]; position -1: not queued yet.
        """
        packed = (codec.pack(list(meta)), codec.pack(list(caps)))
        keys = [self.keys.outcome(rid), self.keys.group(rid), *self._predecessor_keys(meta[8])]
        return self._call("submit", keys, rid, payload, *packed)

    def reserve(
        self,
        parent: str,
        n: int,
        tokens: int,
        tenant: str,
        digest: str,
        api: str,
        delivery: str,
        caps: Sequence[int],
    ) -> Call:
        """Reply: [OK, at] [DUP, at] [DONE] [MISMATCH] [FULL, which, queued]."""
        keys = [self.keys.outcome(parent), self.keys.group(parent)]
        tail = (api, delivery, codec.pack(list(caps)))
        return self._call("reserve", keys, parent, n, tokens, tenant, digest, *tail)

    def submit_many(
        self,
        parent: str,
        start: int,
        meta: Sequence[Any],
        children: Sequence[tuple[bytes, int, str]],
    ) -> Call:
        """`children` are payload, tokens, delivery. Reply: [OK, n] [DUP, n] [GONE] [GAP, n], n of them submitted."""
        flat = [part for child in children for part in child]
        packed = codec.pack(list(meta))
        return self._call("submit_many", [self.keys.group(parent)], parent, start, packed, *flat)

    def claim(
        self, wid: str, seq: int, n: int, max_bytes: int, lease_ms: int, is_idle: bool, slots: int
    ) -> Call:
        """Reply: [verdict, paused, suspects, ready, solo, grant...]; see the script."""
        return self._call("claim", [], wid, seq, n, max_bytes, lease_ms, int(is_idle), slots)

    def beat(
        self,
        wid: str,
        lease_ms: int,
        seq_seen: int,
        info: bytes,
        held: Mapping[str, tuple[str, bool]],
    ) -> Call:
        """Reply: [now, paused, draining, [lost...], [orphan, token, ...]]."""
        flat = [
            part for rid, (token, started) in held.items() for part in (rid, token, int(started))
        ]
        return self._call("beat", [], wid, lease_ms, seq_seen, info, *flat)

    def emit(
        self, wid: str, apis: Sequence[str], pieces: Sequence[tuple[str, str, int, str]]
    ) -> Call:
        """`pieces` are id, token, offset in code points, text. Reply: [[verdict, missed api...]...], one for each."""
        keys = [*(self.keys.part(piece[0]) for piece in pieces), *map(self.keys.out, apis)]
        flat = [part for piece in pieces for part in piece]
        return self._call("emit", keys, wid, ",".join(apis), *flat)

    def finish(
        self,
        rid: str,
        wid: str,
        token: str,
        state: str,
        code: str,
        message: str,
        report: str,
        body: bytes | None,
        ttl_ms: int,
        body_ttl_ms: int,
        inline_max: int,
        apis: Sequence[str],
        parent: str,
        *,
        letters_max_bytes: int,
    ) -> Call:
        """Reply: [OK, was, missed api...] [ALREADY] [LOST] [GONE]."""
        keys = self._terminal_keys(rid, parent, *map(self.keys.out, apis))
        what = (state, code, message, report, body or b"", int(body is not None))
        lives = (ttl_ms, body_ttl_ms, inline_max, ",".join(apis), letters_max_bytes)
        return self._call("finish", keys, rid, wid, token, *what, *lives)

    def end(
        self,
        rid: str,
        how: str,
        code: str,
        message: str,
        wid: str,
        ttl_ms: int,
        apis: Sequence[str],
        parent: str,
        *,
        part_ttl_ms: int,
        letters_max_bytes: int,
    ) -> Call:
        """Reply: [OK, was, wid, missed api...] [GONE] [NOTDUE] [KEYS]."""
        keys = self._terminal_keys(
            rid, parent, self.keys.ctl(wid or "-"), *map(self.keys.out, apis)
        )
        lives = (ttl_ms, part_ttl_ms, ",".join(apis), letters_max_bytes)
        return self._call("end", keys, rid, how, code, message, wid, *lives)

    def end_missing(
        self,
        parent: str,
        state: str,
        code: str,
        start: int,
        count: int,
        ttl_ms: int,
        apis: Sequence[str],
    ) -> Call:
        """Reply: [OK, submitted, n, missed api...] [GONE] [NOTDUE] [KEYS, submitted]."""
        k = self.keys
        children = [k.outcome(f"{parent}.{i}") for i in range(start, start + count)]
        keys = [k.group(parent), k.outcome(parent), *children, *map(k.out, apis)]
        return self._call(
            "end_missing", keys, parent, state, code, start, count, ttl_ms, ",".join(apis)
        )

    def nack(
        self,
        wid: str,
        how: str,
        cause: str,
        held: Sequence[tuple[str, str]],
        *,
        max_attempts: int,
        max_crashes: int,
        delay_ms: int,
    ) -> Call:
        """`held` are ids and tokens. Reply: one of OK, LOST, DEAD for each."""
        flat = [part for pair in held for part in pair]
        return self._call("nack", [], wid, how, cause, max_attempts, max_crashes, delay_ms, *flat)

    def reap(self, n: int, max_crashes: int, max_idle_grants: int) -> Call:
        """Reply: [moved, more, [rid that is queued again...]]."""
        return self._call("reap", [], n, max_crashes, max_idle_grants)

    def sweep(self, n: int) -> Call:
        """Reply: [[rid...], [parent...]]."""
        return self._call("sweep", [], n)

    def promote(self, n: int) -> Call:
        """Reply: [moved, more]."""
        return self._call("promote", [], n)

    def tick(self, lease_ms: int, api: str | None = None, last_id: str = "0-0") -> Call:
        """Reply: [now, paused, system prompt version, created]."""
        extra = [self.keys.out(api)] if api else []
        return self._call("tick", extra, lease_ms, api or "", last_id)

    def peek(self, rid: str) -> Call:
        """Reply: [now, kind, value, position, the server's clock]."""
        return self._call("peek", [self.keys.outcome(rid), self.keys.group(rid)], rid)

    def attach(self, rid: str, api: str, at: str = "0-0", n: int = 0) -> Call:
        """`n` pieces of its part from the place `at` on. Reply: [OK, piece...] [GONE, piece...]."""
        keys = [self.keys.group(rid), self.keys.part(rid)]
        return self._call("attach", keys, rid, api, at, n)

    def notify(self, rid: str, api: str, inline_max: int) -> Call:
        """Reply: [OK] [GONE]."""
        k = self.keys
        return self._call("notify", [k.outcome(rid), k.body(rid), k.out(api)], rid, inline_max)

    def settle(self, rid: str, wid: str, token: str, report: str, output_tokens: int) -> Call:
        """Reply: [OK] [ALREADY] [LOST] [GONE]."""
        own = (rid, wid, token, report, output_tokens)
        return self._call("settle", [self.keys.outcome(rid)], *own)

    def stats(self) -> Call:
        """Reply: see the script."""
        return self._call("stats", [])

    def prune(self, silent_ms: int) -> Call:
        """Reply: [forgotten]."""
        return self._call("prune", [], silent_ms)

    def set_prompt(self, text: str | None, by: str) -> Call:
        """`text` None: none is stored any more. Reply: [version]."""
        return self._call("set_prompt", [], text or "", int(text is not None), by)

    def drop(self, rids: Sequence[str]) -> Call:
        """Reply: [keys that were there]."""
        k = self.keys
        return self._call("drop", [key for rid in rids for key in (k.body(rid), k.part(rid))])

    def list_letters(self, before: str, n: int) -> Call:
        """Reply: [more, [letter, rid, payload bytes, outcome]...]."""
        return self._call("list_letters", [], before, n)

    def requeue_letter(
        self, letter: str, rid: str, payload: bytes, meta: Sequence[Any], caps: Sequence[int]
    ) -> Call:
        """`letter` is its entry in the stream. Reply: as `submit`, and [GONE]."""
        packed = (codec.pack(list(meta)), codec.pack(list(caps)))
        keys = [self.keys.outcome(rid), *self._predecessor_keys(meta[8])]
        return self._call("requeue_letter", keys, letter, rid, payload, *packed)

    def drop_letter(self, letter: str) -> Call:
        """Reply: [OK] [GONE]."""
        return self._call("drop_letter", [], letter)
