"""A hypothesis state machine over the scripts: its rules are calls, the model and S1 to S12 judge each of them.

What it finds it makes as short as it can.
"""

from __future__ import annotations

from itertools import product
from typing import Any

import redis
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    MultipleResults,
    RuleBasedStateMachine,
    initialize,
    invariant,
    multiple,
    rule,
    run_state_machine_as_test,
)

from tests.protocol.invariants import check_state
from tests.protocol.operations import Handle, Operations, Wish
from tests.queue.harness import Shard

QUEUE = "machine"
STEPS = 50
WISHES = [
    Wish(lane=lane, tenant=tenant, tokens=tokens, timeout_ms=timeout_ms, api=api, is_held=is_held)
    for lane, tenant, tokens, timeout_ms, api, is_held in product(
        (0, 1), ("anonymous", "other"), (1, 30), (3000, 600_000), ("api", ""), (False, True)
    )
] + [Wish(not_before_ms=2500), Wish(queue_timeout_ms=2500), Wish(caps=(3, 60, 2, 40))]
ENDS = st.sampled_from(("cancel", "expire", "dead"))
TIMES = st.sampled_from((1, 1, 1, 1, 1, 2))


class Machine(RuleBasedStateMachine):
    """`client` is set by a subclass; each example has the queue for itself."""

    client: redis.Redis

    rids = Bundle("rids")
    parents = Bundle("parents")
    handles = Bundle("handles")
    apis = Bundle("apis")
    workers = Bundle("workers")

    def __init__(self) -> None:
        super().__init__()
        self.shard = Shard(self.client, QUEUE)
        self.shard.advance(1)
        self.ops = Operations(self.shard)
        self.n_made = 0

    def teardown(self) -> None:
        self.ops.set_memory_full(False)
        keys = self.client.keys(f"{self.shard.keys.prefix}*")
        if keys:
            self.client.unlink(*keys)

    @invariant()
    def holds(self) -> None:
        """Each call has compared its reply and the state; what no call does is looked at here."""
        check_state(self.ops.state)

    @initialize(target=workers)
    def some_workers(self) -> MultipleResults[str]:
        return multiple("w1", "w2")

    @initialize(target=apis)
    def some_apis(self) -> MultipleResults[str]:
        self.ops.tick("api")
        return multiple("api", "api2", "")

    def _new(self) -> str:
        self.n_made += 1
        return f"q.0-{self.n_made}"

    @rule(target=rids, wish=st.sampled_from(WISHES), times=TIMES)
    def submit(self, wish: Wish, times: int) -> str:
        rid = self._new()
        self.ops.submit(rid, wish, times)
        return rid

    @rule(rid=rids, digest=st.sampled_from(("d", "another")))
    def submit_again(self, rid: str, digest: str) -> None:
        self.ops.submit(rid, Wish(digest=digest))

    @rule(target=rids, before=st.lists(rids, min_size=1, max_size=3), times=TIMES)
    def submit_after(self, before: list[str], times: int) -> str:
        rid = self._new()
        self.ops.submit(rid, Wish(after=tuple(before)), times)
        return rid

    @rule(target=parents, n=st.integers(1, 3), brought=st.integers(0, 3), times=TIMES)
    def submit_list(self, n: int, brought: int, times: int) -> str:
        parent = self._new()
        self.ops.reserve(parent, n, Wish(), times)
        self.bring(parent, 0, min(n, brought), times)
        return parent

    @rule(target=rids, parent=parents, start=st.integers(0, 2), n=st.integers(1, 2), times=TIMES)
    def bring(self, parent: str, start: int, n: int, times: int) -> str:
        group = self.ops.state.groups.get(parent)
        if n and group is not None and start + n <= int(group["n"]):
            self.ops.bring(parent, start, n, Wish(), times)
        return f"{parent}.{start}"

    @rule(parent=parents, state=st.sampled_from("CE"), times=TIMES)
    def end_missing(self, parent: str, state: str, times: int) -> None:
        self.ops.end_missing(parent, state, times)

    @rule(target=handles, wid=workers, n=st.integers(1, 3), times=TIMES)
    def claim(self, wid: str, n: int, times: int) -> MultipleResults[Handle]:
        return multiple(*self.ops.claim(wid, n, times=times))

    @rule(target=handles, wid=workers, n=st.integers(0, 3))
    def claim_while_busy(self, wid: str, n: int) -> MultipleResults[Handle]:
        return multiple(*self.ops.claim(wid, n, is_idle=False, max_bytes=10))

    @rule(wid=workers, step=st.sampled_from((0, -1)))
    def claim_again(self, wid: str, step: int) -> None:
        self.ops.claim(wid, 2, step=step)

    @rule(handle=handles, is_started=st.booleans(), times=TIMES)
    def beat(self, handle: Handle, is_started: bool, times: int) -> None:
        self.ops.beat(handle.wid, [handle], is_started=is_started, times=times)

    @rule(
        handle=handles, data=st.sampled_from("aé"), offset=st.sampled_from((None, 0)), times=TIMES
    )
    def emit(self, handle: Handle, data: str, offset: int | None, times: int) -> None:
        text = self.ops.texts.get(handle, data)
        self.ops.emit(handle, data if offset is None else text[:1], offset=offset, times=times)

    @rule(handle=handles, how=st.sampled_from((("F", ""), ("E", "bad_record"))), times=TIMES)
    def finish(self, handle: Handle, how: tuple[str, str], times: int) -> None:
        self.ops.finish(handle, state=how[0], code=how[1], times=times)

    @rule(handle=handles, how=st.sampled_from(("release", "retry", "suspect")), times=TIMES)
    def nack(self, handle: Handle, how: str, times: int) -> None:
        self.ops.nack(handle, how, times=times)

    @rule(handle=handles, times=TIMES)
    def cancel_and_settle(self, handle: Handle, times: int) -> None:
        self.ops.end(handle.rid, "cancel")
        self.ops.settle(handle, times)

    @rule(rid=rids, how=ENDS, wid=st.sampled_from((None, "w1")), times=TIMES)
    def end(self, rid: str, how: str, wid: str | None, times: int) -> None:
        self.ops.end(rid, how, wid=wid, times=times)

    @rule(rid=rids, api=apis, n=st.sampled_from((0, 2)), times=TIMES)
    def attach(self, rid: str, api: str, n: int, times: int) -> None:
        self.ops.attach(rid, api, "0-0", n, times)

    @rule(rid=st.one_of(rids, parents))
    def peek(self, rid: str) -> None:
        self.ops.peek(rid)

    @rule(rid=rids, times=TIMES)
    def drop(self, rid: str, times: int) -> None:
        if rid not in self.ops.state.live:
            self.ops.drop([rid], times)

    @rule(target=rids, wish=st.sampled_from(WISHES), times=TIMES)
    def requeue_letter(self, wish: Wish, times: int) -> MultipleResults[str]:
        letters = self.ops.reader.letter_ids
        if not letters:
            return multiple()
        rid = self._new()
        self.ops.requeue(letters[0], rid, wish, times)
        return multiple(rid)

    @rule(
        what=st.sampled_from(("reap", "sweep", "promote")), n=st.sampled_from((1, 100)), times=TIMES
    )
    def keep_house(self, what: str, n: int, times: int) -> None:
        getattr(self.ops, what)(n, times)

    @rule(ms=st.sampled_from((1, 3000, 16_000)))
    def advance(self, ms: int) -> None:
        self.ops.advance(ms)

    @rule(ms=st.sampled_from((-3_600_000, 4000, 3_600_000)), api=st.sampled_from((None, "api")))
    def jump(self, ms: int, api: str | None) -> None:
        self.ops.jump(ms)
        self.ops.tick(api)
        self.ops.prune()

    @rule(rid=rids)
    def submit_when_full(self, rid: str) -> None:
        self.ops.set_memory_full(True)
        self.ops.submit(self._new(), Wish())
        self.ops.end(rid, "cancel")
        self.ops.set_memory_full(False)


def run(client: Any, n_examples: int, *, is_repeatable: bool) -> None:
    """Raises what the shortest way to an error raises. Repeatable: the same examples each time."""
    machine = type("MachineOfOneServer", (Machine,), {"client": client})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=n_examples,
            stateful_step_count=STEPS,
            deadline=None,
            derandomize=is_repeatable,
            database=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
