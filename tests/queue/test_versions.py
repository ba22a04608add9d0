"""Records that this release did not write: of a neighbouring release, of a later one, and what is no record at all."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from shared import codec
from shared.queue.housekeeper import Housekeeper
from shared.queue.keys import Keys
from shared.queue.loader import NAMES, Script, load
from shared.queue.scripts import Arg, Call, Scripts
from shared.request import Record
from tests.protocol.schedule import Schedule
from tests.queue.harness import LEASE_MS, Shard
from tests.queue.pair import FREE, Pair, serving

N_FIELDS = len(Record.__struct_fields__)
FIELD = {name: number for number, name in enumerate(Record.__struct_fields__)}


def raw_of(shard: Shard, rid: str) -> bytes:
    raw: bytes = shard.client.hget(shard.keys.fixed("live"), rid)
    return raw


def fields_of(shard: Shard, rid: str) -> list[Any]:
    fields: list[Any] = msgspec.msgpack.decode(raw_of(shard, rid))
    return fields


def write(shard: Shard, rid: str, raw: bytes) -> None:
    shard.client.hset(shard.keys.fixed("live"), rid, raw)


def changed(fields: Sequence[Any], **changes: Any) -> bytes:
    new = list(fields)
    for name, value in changes.items():
        new[FIELD[name]] = value
    return msgspec.msgpack.encode(new)


def end(shard: Shard, rid: str, how: str) -> list[bytes]:
    """As who knows nothing of it but its id."""
    lives = {"part_ttl_ms": 60_000, "letters_max_bytes": 1 << 20}
    reply: list[bytes] = shard.run(shard.scripts.end(rid, how, "", "", "", 60_000, [], "", **lives))
    return reply


def run_everything(shard: Shard, rid: str, token: str) -> None:
    """Every script that meets a live record, each of which may be told anything but may not fail."""
    scripts = shard.scripts
    shard.submit(rid)
    shard.submit(f"{rid}-after", depends=[rid])
    shard.claim("w2", n=3)
    shard.claim("w2", n=3, idle=False)
    shard.beat("w1", {rid: (token, True)})
    shard.emit(rid, token, 0, "text")
    shard.finish(rid, token)
    for how in ("release", "retry", "suspect"):
        assert shard.nack(how, rid, token) == [b"LOST"]
    shard.run(scripts.attach(rid, "api"))
    shard.run(scripts.peek(rid))
    shard.run(scripts.stats())
    shard.run(scripts.promote(10))
    shard.run(scripts.reap(10, 2, 5))
    shard.run(scripts.sweep(10))
    shard.run(scripts.prune(60_000))


# --- a later version


def put_in_each_place(shard: Shard) -> dict[str, str]:
    """One request queued, one running, one to be tried again later, one suspect: id to token."""
    tokens = {}
    for rid in ("q.0-leased", "q.0-later", "q.0-suspect"):
        shard.submit(rid)
        tokens[rid] = shard.grant()[1]
    shard.nack("retry", "q.0-later", tokens["q.0-later"])
    shard.nack("suspect", "q.0-suspect", tokens["q.0-suspect"])
    shard.submit("q.0-ready")
    return {"q.0-ready": "1-1", **tokens}


def test_a_record_of_a_later_version_is_left_to_those_that_know_it(shard: Shard) -> None:
    tokens = put_in_each_place(shard)
    ours = {rid: raw_of(shard, rid) for rid in tokens}
    before = {}
    for rid in tokens:
        before[rid] = changed([*fields_of(shard, rid), {"new": 1}], v=2, lane=[1], events="other")
        write(shard, rid, before[rid])
    for rid, token in tokens.items():
        run_everything(shard, rid, token)
    shard.advance(LEASE_MS + 1000)
    for rid, token in tokens.items():
        run_everything(shard, rid, token)
        for how in ("cancel", "expire", "dead", "bad"):
            assert end(shard, rid, how) == [b"NEWER"]
        assert raw_of(shard, rid) == before[rid]
    places = {"ready:1": "q.0-ready", "lease": "q.0-leased", "later": "q.0-later"}
    for name, rid in {**places, "ready:S": "q.0-suspect"}.items():
        assert rid.encode() in shard.client.zrange(shard.keys.fixed(name), 0, -1)
    shard.advance(600_000)
    due = shard.run(shard.scripts.sweep(10))[0]
    assert set(due) >= {rid.encode() for rid in tokens}
    for rid, raw in ours.items():
        write(shard, rid, raw)
    end_all(shard)


def test_a_claim_goes_past_64_of_a_later_version_and_no_more(shard: Shard) -> None:
    for i in range(70):
        shard.submit(f"q.0-{i:02d}", tokens=1)
    shard.submit("q.0-ours")
    live = shard.keys.fixed("live")
    newer = {f"q.0-{i:02d}": changed(fields_of(shard, f"q.0-{i:02d}"), v=2) for i in range(70)}
    shard.client.hset(live, mapping=newer)
    assert shard.claim(n=2)[5:] == []
    for i in range(10):
        write(shard, f"q.0-{i:02d}", changed(fields_of(shard, f"q.0-{i:02d}"), v=1))
    for _ in range(10):
        shard.finish(*shard.grant())
    assert shard.grant()[0] == "q.0-ours"
    for rid in newer:
        if raw := raw_of(shard, rid):
            write(shard, rid, changed(msgspec.msgpack.decode(raw), v=1))


# --- no record at all


def broken(good: Sequence[Any]) -> list[bytes]:
    """Everything that a record can be that is none."""
    pack = msgspec.msgpack.encode
    wrong: dict[type, list[Any]] = {
        int: ["12", [], {}, float("nan"), True],
        float: ["1.5", [], float("inf")],
        str: [7, None, [], {}, True],
        list: ["text", 7, None, [[]], [{}], [True]],
    }
    found = [
        b"garbage",
        b"",
        b"\xff",
        pack(7),
        pack({}),
        pack("text"),
        pack([]),
        pack([1]),
        pack(good)[:-3],
    ]
    found += [pack(list(good[:n])) for n in (3, 12, 23)]
    found.append(pack(good) + b"\x01")
    for number, value in enumerate(good):
        for other in wrong[type(value)]:
            found.append(pack([*good[:number], other, *good[number + 1 :]]))
    found += [changed(good, **{name: None}) for name in ("lane", "deadline_ms", "claimed_ms")]
    found.append(changed(good, deadline_ms=1 << 60))
    for name, value in {
        "state": "Z", "lane": 3, "entry_id": "here", "v": 0, "events": [[1, "kind"]], "apis": [["api"]],
    }.items():  # fmt: skip
        found.append(changed(good, **{name: value}))
    found.append(changed(good, entry_id="1-99999999999999999999"))
    return found


def test_what_is_no_record_costs_itself_alone(shard: Shard) -> None:
    shard.submit("q.0-good", tenant="tenant", api="api")
    shard.claim(n=0)
    good = fields_of(shard, "q.0-good")
    raws = broken(good)
    assert len(raws) > 100
    for name in ("ready:1", "ready:S", "ready:R", "lease", "later"):
        ids = {f"q.0-{name[-1]}{n:03d}": raw for n, raw in enumerate(raws)}
        for rid, raw in ids.items():
            write(shard, rid, raw)
        shard.client.zadd(shard.keys.fixed(name), dict.fromkeys(ids, -1))
        shard.client.zadd(shard.keys.fixed("when"), dict.fromkeys(ids, shard.now_ms + 900_000))
        for rid in list(ids)[:: len(ids) // 6]:
            run_everything(shard, rid, "1-1")
        for _ in range(2):
            shard.claim("w3", n=1)
            shard.claim("w3", n=1, idle=False)
            shard.run(shard.scripts.reap(200, 2, 5))
            shard.run(shard.scripts.promote(200))
        assert not set(ids) & {
            rid.decode() for rid in shard.client.zrange(shard.keys.fixed(name), 0, -1)
        }
        # Offered by now, or at once.
        dues = shard.client.zmscore(shard.keys.fixed("when"), list(ids))
        assert max(dues) <= shard.now_ms + 5000
        for rid in ids:
            assert end(shard, rid, "dead")[0] == b"OK", ids[rid]
            outcome = shard.outcome(rid)
            assert outcome is not None
            assert (outcome.state, outcome.code) == ("E", "bad_record")
    record = shard.record("q.0-good")
    assert record is not None
    shard.finish("q.0-good", record.token, record.worker)
    end_all(shard)
    assert shard.run(shard.scripts.prune(60_000)) == [0]


def end_all(shard: Shard) -> None:
    """Whatever is live still, so that the fixture finds an idle queue."""
    for raw_rid in shard.client.hkeys(shard.keys.fixed("live")):
        shard.end(raw_rid.decode(), "cancel")


async def test_the_housekeeper_ends_what_cannot_be_read_and_its_waiter_is_told(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shared.queue.producer.RECONCILE_AFTER_S", 0.2)
    client = pair.producer
    bad, good, late = pair.req("bad"), pair.req("good"), pair.req("late")
    for req in (bad, good, late):
        await client.submit(req, FREE, watch=True)
    line, live = pair._connections[0].line, Keys(pair.settings.queue_name).fixed("live")
    raw = await line.run(("HGET", live, late.id))
    # The scripts can read the last one and Python cannot, since half a token is no number of tokens.
    half = changed(msgspec.msgpack.decode(raw), cost_tokens=0.5, queue_until_ms=1)
    await line.run(("HSET", live, bad.id, b"garbage", late.id, half))
    async with serving(pair):
        assert (await client.wait(good.id, 10)).body is not None
    housekeeper = Housekeeper(pair._connections[1], pair.settings)
    await line.run(("ZADD", Keys(pair.settings.queue_name).fixed("when"), 1, late.id))
    await housekeeper.once()
    for rid in (bad.id, late.id):
        assert (await client.wait(rid, 15)).outcome.code == "bad_record"
    assert (await client.stats()).live == 0


# --- neighbouring releases


def test_fields_that_a_later_release_adds_are_kept_by_every_script(shard: Shard) -> None:
    shard.api("api")
    shard.submit("q.0-a", api="api", held=True)
    extra = ["next", 5, [1, "two"], 0.5]
    write(shard, "q.0-a", msgspec.msgpack.encode([*fields_of(shard, "q.0-a"), *extra]))

    def is_kept() -> bool:
        fields = fields_of(shard, "q.0-a")
        return (
            fields[N_FIELDS:] == extra
            and len(codec.decode_record(raw_of(shard, "q.0-a")).tenant) > 0
        )

    for how in ("retry", "release", "suspect", "reap", "cancel"):
        rid, token = shard.grant()
        assert is_kept()
        shard.start(rid, token)
        shard.run(shard.scripts.attach(rid, "api2"))
        shard.run(shard.scripts.attach(rid, ""))
        assert is_kept()
        if how == "reap":
            shard.advance(LEASE_MS + 1000)
            shard.reap()
        elif how != "cancel":
            shard.nack(how, rid, token)
        assert is_kept()
        shard.advance(2000)
        shard.run(shard.scripts.promote(10))
        shard.run(shard.scripts.sweep(10))
        assert is_kept()
    assert shard.end("q.0-a", "cancel", apis=["api", "api2"])[0] == b"OK"


def test_a_record_from_before_the_last_fields_is_read(shard: Shard) -> None:
    shard.submit("q.0-a")
    write(shard, "q.0-a", msgspec.msgpack.encode(fields_of(shard, "q.0-a")[: FIELD["tag"]]))
    rid, token = shard.grant()
    assert shard.finish(rid, token) == [b"OK", b"R"]


def next_release(script: Script) -> Script:
    """What a later release may look like: another text, and one more field in each record that it writes."""
    source = script.source.replace("\n", "\n-- the next release\n", 1)
    save = "local function save_record(rid, rec)\n"
    assert ("save_record(" in source) == (source.count(save) == 1)
    source = source.replace(save, f"{save}  rec[{N_FIELDS + 1}] = rec[{N_FIELDS + 1}] or 'next'\n")
    return replace(script, source=source, sha=hashlib.sha1(source.encode()).hexdigest())


class MixedFleet(Scripts):
    """Each call is made by a process of this release or of the next."""

    def __init__(self, keys: Keys, at_ms: int, seed: int) -> None:
        super().__init__(keys, at_ms)
        self._random = random.Random(seed)
        self._next = {name: next_release(load(name)) for name in NAMES}

    def _call(self, name: str, extra: Sequence[str], *args: Arg) -> Call:
        call = super()._call(name, extra, *args)
        if self._random.random() < 0.5:
            return replace(call, script=self._next[name])
        return call


@pytest.mark.parametrize("seed", range(8))
def test_two_releases_share_a_queue_under_a_random_schedule(shard: Shard, seed: int) -> None:
    shard.scripts = MixedFleet(shard.keys, shard.now_ms, seed)
    Schedule(shard, seed).run()
