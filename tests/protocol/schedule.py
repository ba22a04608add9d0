"""A seeded random schedule of every operation of the protocol, with lost replies, clock steps and a full broker."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import msgspec

from tests.protocol.operations import Handle, Operations, Wish
from tests.queue.harness import NO_CAPS, Shard

STEPS = 120
LOST_REPLY = 0.15
FOCUS = 5
WORKERS = ("w1", "w1", "w2")
APIS = ("api", "api2", "api3", "api4", "api5")
TENANTS = ("anonymous", "anonymous", "other", "third")
WEIGHTS = {"anonymous": 1, "other": 2, "third": 0.5}
CAPS = ((8, 0, 0, 0), (0, 150, 0, 0), (0, 0, 4, 0), (0, 0, 0, 60))
WEIGHT_OF = {
    "submit": 10, "list": 3, "bring": 3, "resubmit": 3, "chain": 6, "crowd": 0.3, "peek": 2, "attach": 3, "drop": 1,
    "notify": 1, "cancel": 4, "cancel_list": 1, "end_early": 2, "requeue": 2, "drop_letter": 0.5,
    "claim": 14, "claim_again": 4, "beat": 8, "emit": 8, "finish": 12, "nack": 6, "settle": 2,
    "late_reply": 0.7, "poison": 0.7, "walk_away": 0.5, "stream": 0.7,
    "reap": 3, "sweep": 4, "promote": 3, "prune": 1, "tick": 2, "advance": 6, "jump": 1,
    "flush": 1, "fill": 1.5, "pause": 1, "drain_wish": 1, "lose_entry": 0.7, "hear_bell": 5,
}  # fmt: skip


class Schedule:
    """Draws operations from one seed, those of `focus` more often; `options` are those of `Twin`."""

    def __init__(self, shard: Shard, seed: int, focus: Sequence[str] = (), **options: Any) -> None:
        self.shard = shard
        self.random = random.Random(seed)
        more = {name: FOCUS * WEIGHT_OF[name] for name in focus}
        self.weights = WEIGHT_OF | more
        self.ops = Operations(shard, **options)
        self.letter_rids: dict[str, str] = {}
        self.n_made = 0
        self.ops.tick("api")
        self.ops.tick("api2")

    @property
    def rids(self) -> list[str]:
        return self.ops.rids

    def run(self, steps: int = STEPS, n_calls: int | None = None) -> None:
        """That many operations, then to the end of all that was accepted; or no further than `n_calls` scripts."""
        try:
            for _ in range(steps):
                if n_calls is not None and self.ops.n_calls >= n_calls:
                    return
                self.step()
            self.drain()
        finally:
            # Other tests share the server.
            self.ops.set_memory_full(False)

    def step(self) -> None:
        (name,) = self.random.choices(list(self.weights), list(self.weights.values()))
        getattr(self, f"do_{name}")()

    def times(self) -> int:
        return 2 if self.random.random() < LOST_REPLY else 1

    def chance(self, p: float) -> bool:
        return self.random.random() < p

    def new_rid(self, kind: str = "") -> str:
        self.n_made += 1
        return f"q.0-{kind}{self.n_made:04d}"

    def live(self) -> list[str]:
        """In the order in which they came: the server has none."""
        return [rid for rid in self.rids if rid in self.ops.state.live]

    def any_rid(self) -> str:
        """Recent ones rather than old ones, now and then one that never was."""
        known = [*self.rids[-25:], *self.ops.parents[-4:]]
        return self.random.choice([*known, "q.0-none"])

    def any_handle(self) -> Handle | None:
        """One that owns its request rather than a dead one, now and then in the hands of another worker."""
        handles = self.ops.handles[-25:]
        if not handles:
            return None
        owning = [handle for handle in handles if self.ops.is_owner(handle)]
        handle = self.random.choice(owning if owning and self.chance(0.6) else handles)
        if self.chance(0.05):
            handle = msgspec.structs.replace(handle, wid=self.random.choice(WORKERS))
        return handle

    def wish(self, **options: Any) -> Wish:
        draw, tenant = self.random, self.random.choice(TENANTS)
        wish = Wish(
            lane=draw.randrange(3),
            tenant=tenant,
            weight=WEIGHTS[tenant],
            tokens=draw.choice((1, 10, 30)),
            timeout_ms=draw.choice((3000, 40_000, 600_000, 600_000)),
            queue_timeout_ms=draw.choice((2500, 600_000, 600_000)),
            api=draw.choice(("api", "api2", "api3", "")),
            not_before_ms=draw.choice((0, 0, 0, 0, 2500)),
            is_held=self.chance(0.3),
            payload=b"p" * draw.choice((1, 50)),
            caps=draw.choice(CAPS) if self.chance(0.15) else NO_CAPS,
        )
        return msgspec.structs.replace(wish, **options)

    # Clients

    def do_submit(self) -> None:
        for _ in range(self.random.choice((1, 1, 3))):
            self.ops.submit(self.new_rid(), self.wish(), self.times())

    def do_resubmit(self) -> None:
        digest = self.random.choice(("d", "d", "another"))
        self.ops.submit(self.any_rid(), self.wish(digest=digest), self.times())

    def do_chain(self) -> None:
        """After live ones, after what has finished, and now and then after any id."""
        draw, state = self.random, self.ops.state
        ends = ((rid, state.outcomes.get(rid)) for rid in self.rids[-25:])
        finished = [rid for rid, outcome in ends if outcome and outcome.state == "F"]
        rids = draw.choice((self.live(), finished, [self.any_rid()], self.ops.parents[-2:]))
        if not rids:
            return
        after = tuple(draw.choices(rids, k=draw.choice((1, 1, 2, 3))))
        other = state.live.get(after[0]) or state.outcomes.get(after[0])
        tenant = other.tenant if other and self.chance(0.9) else draw.choice(TENANTS)
        self.ops.submit(self.new_rid(), self.wish(after=after, tenant=tenant), self.times())

    def do_crowd(self) -> None:
        """So many wait for one request that the next is refused."""
        live = self.live()
        if live and not self.ops.is_memory_full:
            rid = self.random.choice(live)
            tenant = self.ops.state.live[rid].tenant
            wish = self.wish(after=(rid,), tenant=tenant, timeout_ms=3000, caps=NO_CAPS)
            self.ops.crowd([self.new_rid() for _ in range(80)], wish)

    def do_list(self) -> None:
        parent, n = self.new_rid("list"), self.random.randint(1, 5)
        if self.chance(0.3):
            parent = self.random.choice([self.any_rid(), *self.ops.parents[-2:]])
        wish = self.wish(digest=self.random.choice(("d", "another")))
        self.ops.reserve(parent, n, wish, self.times())
        if self.chance(0.7):
            self.bring(parent)

    def do_bring(self) -> None:
        if self.ops.parents:
            self.bring(self.random.choice(self.ops.parents[-4:]))

    def bring(self, parent: str) -> None:
        """The next of its children, or by mistake some that are not the next."""
        group = self.ops.state.groups.get(parent)
        if group is None:
            return
        done, n = int(group["submitted"]), int(group["n"])
        start = done if self.chance(0.8) else self.random.randrange(n)
        most = n - start
        if most > 0:
            tokens = int(group["tokens"]) // max(1, n - done)
            wish = self.wish(tokens=tokens, tenant=group["tenant"], not_before_ms=0, is_held=False)
            self.ops.bring(parent, start, self.random.randint(1, most), wish, self.times())

    def do_peek(self) -> None:
        self.ops.peek(self.any_rid())

    def do_notify(self) -> None:
        """Of what has ended, and of what has not; now and then to a front door that has no stream."""
        self.ops.notify(
            self.any_rid(), self.random.choice(APIS), self.random.choice((0, 1024)), self.times()
        )

    def do_attach(self) -> None:
        """One more reader, now and then more than there is room for, or a caller that waits no longer."""
        at, n = self.random.choice((("0-0", 0), ("0-0", 9), ("1-3", 1), ("1-3", 2)))
        live, told = self.live()[-2:], [rid for rid in self.rids if rid in self.ops.state.parts]
        rid = self.random.choice(live) if live and self.chance(0.5) else self.any_rid()
        if told and self.chance(0.4):
            rid = self.random.choice(told)
        for api in self.random.sample((*APIS, ""), self.random.choice((1, 1, 1, 6))):
            self.ops.attach(rid, api, at, n, self.times())

    def do_drop(self) -> None:
        rids = [rid for rid in (self.any_rid(), self.any_rid()) if rid not in self.ops.state.live]
        if rids:
            self.ops.drop(rids, self.times())

    def do_cancel(self) -> None:
        self.end(self.any_rid(), "cancel")

    def do_end_early(self) -> None:
        self.end(self.any_rid(), self.random.choice(("expire", "dead")))

    def end(self, rid: str, how: str) -> None:
        """Now and then by somebody who has an old picture of it."""
        wid = self.random.choice(WORKERS) if self.chance(0.15) else None
        apis = ["api"] if self.chance(0.15) else None
        if rid not in self.ops.parents:
            self.ops.end(rid, how, wid=wid, apis=apis, times=self.times())

    def do_cancel_list(self) -> None:
        if self.ops.parents:
            parent = self.random.choice(self.ops.parents[-4:])
            state = self.random.choice("CCE")
            self.ops.end_missing(parent, state, self.times())
            if state == "C" and self.chance(0.7):
                self.ops.cancel_children(parent)

    def do_requeue(self) -> None:
        """A letter that is there, one that was, or one that never was."""
        for letter in self.ops.reader.letter_ids:
            self.letter_rids.setdefault(letter, self.new_rid("again"))
        letter = self.random.choice([*list(self.letter_rids)[-4:], "1-1"])
        rid = self.letter_rids.get(letter) or self.new_rid()
        self.ops.requeue(letter, rid, self.wish(), self.times())

    def do_drop_letter(self) -> None:
        self.ops.drop_letter(self.random.choice([*self.ops.reader.letter_ids, "1-1"]), self.times())

    # Workers

    def do_claim(self) -> None:
        draw, seqs = self.random, self.ops.seqs
        wid = draw.choice(WORKERS)
        # Workers count their claims each for itself: some numbers are those of another's.
        ahead = max(seqs.values(), default=0) - seqs.get(wid, 0)
        self.ops.claim(
            wid,
            draw.randint(0, 4),
            step=ahead if ahead > 0 and self.chance(0.3) else 1,
            is_idle=self.chance(0.5),
            slots=draw.choice((2, 8)),
            max_bytes=draw.choice((30, 60, 1 << 20, 1 << 20, 1 << 20)),
            times=self.times(),
        )

    def do_claim_again(self) -> None:
        self.ops.claim(self.random.choice(WORKERS), 2, step=self.random.choice((0, 0, -1)))

    def do_late_reply(self) -> None:
        """A worker asks for its last grants again when they are not its own any more."""
        wid, other = self.random.sample(sorted(set(WORKERS)), 2)
        for handle in self.ops.claim(wid, 1):
            if self.chance(0.5):
                self.ops.nack(handle, "release")
                ahead = self.ops.seqs[wid] - self.ops.seqs.get(other, 0)
                self.ops.claim(other, 2, step=max(1, ahead))
            else:
                self.ops.advance(16_000)
                self.ops.reap()
        self.ops.claim(wid, 1, step=0)

    def do_walk_away(self) -> None:
        """A caller that holds the line goes, and its front door with it, while its request runs."""
        rid = self.new_rid()
        self.ops.submit(rid, Wish(lane=0, api="gone", is_held=True))
        handles = self.ops.claim("w1", 4, is_idle=False)
        for _ in range(3):
            self.ops.beat("w1", handles)
            self.ops.advance(11_000)
        self.ops.beat("w1", handles)
        for handle in handles:
            if handle.rid == rid:
                self.ops.finish(handle)

    def do_stream(self) -> None:
        """Two front doors read a text along, from its first piece to its end."""
        rid = self.new_rid()
        self.ops.submit(rid, Wish(lane=0))
        self.ops.attach(rid, "api2")
        for handle in self.ops.claim("w1", 4, is_idle=False):
            if handle.rid == rid:
                for data in self.random.choices(("a", "bcé", "x" * 1100), k=3):
                    self.ops.emit(handle, data, times=self.times())
                self.ops.finish(handle)

    def do_poison(self) -> None:
        """Whatever runs takes its worker along."""
        for _ in range(3):
            for handle in self.ops.claim(self.random.choice(WORKERS), 4):
                self.ops.nack(handle, "suspect")

    def do_beat(self) -> None:
        if handle := self.any_handle():
            mine = [h for h in self.ops.handles[-25:] if h.wid == handle.wid]
            held = self.random.sample(mine, self.random.randint(0, min(3, len(mine))))
            held += [handle] if self.chance(0.5) else []
            seq = self.random.choice((None, None, 1))
            is_started = self.chance(0.7)
            self.ops.beat(handle.wid, held, is_started=is_started, seq=seq, times=self.times())

    def do_emit(self) -> None:
        if handle := self.any_handle():
            draw = self.random
            data = draw.choice(("a", "bcé", "", "x" * 1100))
            offset = draw.choice((None, None, None, 0))
            if offset == 0:
                data = self.ops.texts.get(handle, data)[: len(data)]
            apis = ["api"] if self.chance(0.2) else None
            self.ops.emit(handle, data, offset=offset, apis=apis, times=self.times())

    def do_finish(self) -> None:
        if handle := self.any_handle():
            state, code = self.random.choice(
                (*[("F", "")] * 3, ("E", "bad_record"), ("E", "engine"))
            )
            apis = ["api"] if self.chance(0.15) else None
            inline_max = self.random.choice((0, 1024))
            self.ops.finish(
                handle, state=state, code=code, apis=apis, inline_max=inline_max, times=self.times()
            )

    def do_nack(self) -> None:
        if handle := self.any_handle():
            how = self.random.choice(("release", "retry", "suspect", "suspect"))
            self.ops.nack(handle, how, self.random.choice((500, 500, 70_000)), self.times())

    def do_settle(self) -> None:
        if handle := self.any_handle():
            self.ops.settle(handle, self.times())

    # Upkeep and the world around

    def do_reap(self) -> None:
        self.ops.reap(self.random.choice((1, 100)), self.times())

    def do_promote(self) -> None:
        self.ops.promote(self.random.choice((1, 100)), self.times())

    def do_sweep(self) -> None:
        self.ops.sweep(self.random.choice((1, 100)), self.times())

    def do_prune(self) -> None:
        self.ops.prune()

    def do_tick(self) -> None:
        self.ops.tick(self.random.choice((*APIS, None)), self.times())

    def do_advance(self) -> None:
        self.ops.advance(self.random.choice((1, 900, 3000, 16_000)))

    def do_jump(self) -> None:
        self.ops.jump(self.random.choice((-3_600_000, -500, 4000, 30_000, 3_600_000)))
        if self.chance(0.7):
            self.ops.tick()

    def do_flush(self) -> None:
        self.ops.flush_scripts()

    def do_fill(self) -> None:
        self.ops.set_memory_full(not self.ops.is_memory_full)

    def do_pause(self) -> None:
        if self.ops.is_memory_full:
            return
        is_paused = "paused" in self.ops.state.flags
        self.ops.set_flag("paused", None if is_paused else "1")

    def do_drain_wish(self) -> None:
        if self.ops.is_memory_full:
            return
        wid = self.random.choice(WORKERS)
        self.ops.set_flag(f"drain:{wid}", self.random.choice(("1", None)))

    def do_hear_bell(self) -> None:
        self.ops.hear_bell()

    def do_lose_entry(self) -> None:
        if live := [rid for rid in self.live() if rid in self.ops.state.entries]:
            self.ops.lose_entry(self.random.choice(live))

    def drain(self) -> None:
        """From here on everybody does their work: all must come to an end."""
        ops = self.ops
        ops.set_memory_full(False)
        ops.set_flag("paused", None)
        for _ in range(60):
            ops.advance(2000)
            ops.sweep()
            ops.reap()
            ops.promote()
            for handle in ops.claim("last", 50):
                ops.finish(handle)
            if not ops.state.live and not ops.state.sets["resv"]:
                return
        raise AssertionError(f"never ends: {ops.state.live} {ops.state.sets['resv']}")
