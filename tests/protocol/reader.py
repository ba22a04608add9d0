"""Reads a shard of the real server into a `State`, all keys in one step. Knows the keys' layout and no rule."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import msgspec

from shared import codec
from shared.queue.keys import Keys
from shared.queue.results import notices
from shared.request import Outcome, Record
from tests.protocol.state import Entry, Letter, State, place_of

# All keys of a shard with type and content, in one reply. It may look at any key: it is no part of the product.
DUMP = """
local out = {}
for i, key in ipairs(redis.call('KEYS', ARGV[1] .. ':*')) do
  local kind, value = redis.call('TYPE', key).ok, nil
  if kind == 'string' then value = redis.call('GET', key)
  elseif kind == 'hash' then value = redis.call('HGETALL', key)
  elseif kind == 'zset' then value = redis.call('ZRANGE', key, 0, -1, 'WITHSCORES')
  elseif kind == 'stream' then value = redis.call('XRANGE', key, '-', '+') end
  out[i] = {key, kind, value, redis.call('PTTL', key)}
end
return out
"""
FIELDS = {"res": "outcomes", "body": "bodies", "grp": "groups", "part": "parts", "out": "outs"}
NUMBERS = {"ten": "room", "stat": "stat", "apis": "apis"}


class Reader:
    """What has not changed since the last time is not read anew: parts of a state are shared and must not be changed.

    `letter_ids` are the names of the dead letters, `lives` what is left of the keys that expire, in milliseconds.
    """

    def __init__(self, client: Any, keys: Keys) -> None:
        self._prefix = keys.prefix
        self._dump = client.register_script(DUMP)
        self._known: dict[str, tuple[Any, Any]] = {}
        self._live: tuple[Any, Any, dict[str, Record]] = (None, None, {})
        self.letter_ids: list[str] = []
        self.lives: dict[str, int] = {}

    @property
    def command(self) -> tuple[str | int, ...]:
        """For who sends it along with another; `parse` takes what it replies."""
        return ("EVALSHA", self._dump.sha, 0, self._prefix)

    def read(self) -> State:
        return self.parse(self._dump(args=[self._prefix]))

    def parse(self, keys: list[Any]) -> State:
        state, known, self.lives, self.letter_ids = State(), {}, {}, []
        raw_live: dict[str, Record] = {}
        entry_ids: dict[str, str] = {}
        for raw_key, kind, value, life_ms in keys:
            key = raw_key.decode()[len(self._prefix) + 1 :]
            name, _, of = key.partition(":")
            was = self._known.get(key)
            parsed = was[1] if was and was[0] == value else parse(name, kind, value)
            known[key] = (value, parsed)
            if life_ms >= 0 and name in ("res", "body", "part", "grp"):
                self.lives[key] = life_ms
            if name == "live":
                raw_live = parsed
            elif name == "in":
                state.entries, entry_ids = parsed
            elif name == "dlq":
                state.letters, self.letter_ids = parsed
            elif name == "wk":
                state.beats, state.claims, state.infos = parsed
            elif name == "ctl":
                state.ctl[of] = parsed
            elif name in FIELDS:
                getattr(state, FIELDS[name])[of] = parsed
            elif kind == b"zset":
                state.sets[key] = parsed
            elif name != "sys":
                setattr(state, NUMBERS.get(name, name), parsed)
        self._known = known
        state.live = self._with_entries(raw_live, entry_ids)
        return state

    def _with_entries(
        self, live: dict[str, Record], entry_ids: dict[str, str]
    ) -> dict[str, Record]:
        if self._live[0] is not live or self._live[1] is not entry_ids:
            found = {
                rid: msgspec.structs.replace(
                    record, entry_id=rid if entry_ids.get(rid) == record.entry_id else ""
                )
                for rid, record in live.items()
            }
            self._live = live, entry_ids, found
        return self._live[2]


def parse(name: str, kind: bytes, value: Any) -> Any:
    """One key's content; `kind` is the server's word for its type."""
    if kind == b"zset":
        return {member.decode(): float(score) for member, score in _pairs(value)}
    if kind == b"hash":
        return _hash(name, value)
    if kind == b"string":
        return _outcome(value) if name == "res" else value
    if name == "out":
        told = (fields for _, flat in value for fields in notices(flat))
        return [_entry({k.decode(): v for k, v in fields.items()}) for fields in told]
    entries = [(eid.decode(), {k.decode(): v for k, v in _pairs(flat)}) for eid, flat in value]
    if name == "in":
        payloads = {fields["i"].decode(): fields["p"] for _, fields in entries}
        assert len(payloads) == len(entries), "two entries of one id"
        return payloads, {fields["i"].decode(): eid for eid, fields in entries}
    if name == "part":
        return {place_of(eid): (f["t"].decode(), f["d"].decode()) for eid, f in entries}
    letters = [Letter(f["i"].decode(), f["p"], _outcome(f["o"])) for _, f in entries]
    return letters, [eid for eid, _ in entries]


def _hash(name: str, value: list[bytes]) -> Any:
    fields = {field.decode(): raw for field, raw in _pairs(value)}
    if name == "live":
        return {rid: _record(raw) for rid, raw in fields.items()}
    if name == "deps":
        return {rid: codec.unpack(raw) for rid, raw in fields.items()}
    if name == "tags":
        return {field: float(raw) for field, raw in fields.items()}
    if name in NUMBERS:
        return {field: int(raw) for field, raw in fields.items()}
    if name == "wk":
        by_kind: dict[str, dict[str, bytes]] = {"b": {}, "c": {}, "i": {}}
        for field, raw in fields.items():
            by_kind[field[0]][field[2:]] = raw
        beats = {wid: int(raw) for wid, raw in by_kind["b"].items()}
        return beats, {wid: codec.unpack(raw) for wid, raw in by_kind["c"].items()}, by_kind["i"]
    assert name in ("grp", "flags", "sys"), f"a key that nobody declared: {name}"
    return {field: raw.decode() for field, raw in fields.items()}


def _pairs(flat: list[bytes]) -> Iterator[tuple[bytes, bytes]]:
    parts = iter(flat)
    return zip(parts, parts, strict=True)


def _entry(fields: dict[str, bytes]) -> Entry:
    rid = fields["i"].decode()
    if "r" in fields:
        return Entry(rid, _outcome(fields["r"]), fields.get("b"))
    place, token, data = (fields[name].decode() for name in "ctd")
    return Entry(rid, place=place, token=token, data=data)


# Without the check of versions in `codec`: a record of a later release is looked at too.
_records = msgspec.msgpack.Decoder(Record)
_outcomes = msgspec.msgpack.Decoder(Outcome)


@lru_cache(4096)
def _record(raw: bytes) -> Record:
    return _records.decode(raw)


@lru_cache(4096)
def _outcome(raw: bytes) -> Outcome:
    return _outcomes.decode(raw)
