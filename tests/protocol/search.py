"""Looks at every state that the model can reach in a small world: `python -m tests.protocol.search`.

Two requests, two workers, housekeepers, clock steps of more than a lease, and one lossy failover: the store returns to
an earlier snapshot while workers keep what they were told. Every call is also run twice. Checked in each state are S2,
S3, S4, S8, S10 and S12, at each step S5 and S7, and between failovers S1 and S6 too.
"""

from __future__ import annotations

import argparse
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from tests.protocol.invariants import PROGRESS, check_again, check_state
from tests.protocol.model import Model
from tests.protocol.state import State

START_MS = 1_800_000_000_000
LEASE_MS = 15_000
TTL_MS = 86_400_000
REQUESTS = ("q.0-a", "q.0-b")
WORKERS = ("w1", "w2")
META = [1, "anonymous", 1, 40_000, 40_000, "api", "{}", "d", [], "", "", 0, 1, 0]


class Bounds(msgspec.Struct, frozen=True):
    """How often each of what would make the world endless may happen."""

    requests: int = 2
    claims: int = 1
    clock_steps: int = 1
    rollbacks: int = 1
    is_chained: bool = False


class Node(msgspec.Struct):
    """A world: the store, what its workers were told, and what must be remembered for the checks.

    `handles` are (worker, id, token); `latest` the last token of each id that this store gave out; `saved` the store
    and its `latest` as they were at the snapshot.
    """

    state: State
    at_ms: int = START_MS
    handles: frozenset[tuple[str, str, str]] = frozenset()
    latest: dict[str, str] = {}
    claims: tuple[int, ...] = (0, 0)
    clock_steps: int = 0
    saved: tuple[State, dict[str, str]] | None = None
    is_rolled_back: bool = False
    is_begun: bool = False
    trail: tuple[Any, ...] = ()

    def key(self) -> bytes:
        """Equal for worlds that differ in nothing that any script looks at."""
        rest = [sorted(self.handles), self.latest, self.claims, self.clock_steps, self.at_ms]
        saved = [seen(self.saved[0]), self.saved[1]] if self.saved else None
        return _encoder.encode([seen(self.state), rest, saved, self.is_rolled_back, self.is_begun])


def seen(state: State) -> list[Any]:
    """Of the events only the last, and only where a script reads it; of the counters only the fence."""
    live = [
        (
            rid,
            msgspec.structs.replace(
                record, events=record.events[-1:] if record.state == "K" else []
            ),
        )
        for rid, record in sorted(state.live.items())
    ]
    ended = [
        (rid, o.state, o.token, bool(o.report_json)) for rid, o in sorted(state.outcomes.items())
    ]
    sets = [
        sorted(state.sets[name].items()) for name in state.sets if name not in ("bell", "recent")
    ]
    claims, fence = sorted(state.claims.items()), state.stat.get("fence", 0)
    return [live, ended, sets, claims, fence, state.flags, sorted(state.deps.items()), state.room]


_encoder = msgspec.msgpack.Encoder(order="sorted")


class Search:
    def __init__(self, bounds: Bounds, protocol: type[Model] = Model) -> None:
        self.bounds, self.protocol = bounds, protocol
        self.n_states = self.n_steps = self.depth = 0

    def run(self) -> None:
        """Raises AssertionError with the steps that led there, the shortest way."""
        model = self.protocol()
        model.at_ms = START_MS
        model.run("tick", LEASE_MS, "api")
        first = Node(model.state)
        known = {hash(first.key())}
        frontier = deque([(0, first)])
        while frontier:
            self.depth, node = frontier.popleft()
            self.n_states += 1
            for after in self._steps(node):
                self.n_steps += 1
                if after is not None and (key := hash(after.key())) not in known:
                    self._checked(after.trail, check_state, after.state)
                    known.add(key)
                    frontier.append((self.depth + 1, after))

    def _steps(self, node: Node) -> Iterator[Node | None]:
        # The two requests are alike, and so are the workers: without loss the first is the first.
        for rid in REQUESTS[: self.bounds.requests if node.is_begun else 1]:
            if rid not in node.state.outcomes and rid not in node.state.live:
                yield self._submit(node, rid)
            if rid in node.state.live:
                yield from (self._end(node, rid, how) for how in ("cancel", "expire", "dead"))
        for i, wid in enumerate(WORKERS):
            if node.claims[i] < self.bounds.claims and (i == 0 or node.claims[0]):
                seq = node.claims[i] + 1
                after = self._call(node, "claim", wid, seq, 1, 1 << 20, LEASE_MS, True, 4)
                assert after is not None, "a claim is remembered"
                after.claims = tuple(seq if j == i else n for j, n in enumerate(node.claims))
                yield after
        dead = [handle for handle in node.handles if not is_owner(node.state, *handle)]
        self._refused(node, dead)
        for handle in node.handles.difference(dead):
            yield from self._handle_steps(node, *handle)
        yield self._call(node, "reap", 1, 1, 2)
        yield self._call(node, "promote", 1)
        if node.clock_steps < self.bounds.clock_steps:
            yield self._later(node, 16_000)
        if self.bounds.rollbacks and node.saved is None:
            yield self._copy(node, "snapshot", saved=(node.state.copy(), dict(node.latest)))
        if node.saved is not None and not node.is_rolled_back:
            store, latest = node.saved
            yield self._copy(
                node, "rollback", state=store.copy(), latest=dict(latest), is_rolled_back=True
            )

    def _submit(self, node: Node, rid: str) -> Node | None:
        before = [REQUESTS[0]] if self.bounds.is_chained and rid == REQUESTS[1] else []
        meta = [*META[:8], before, *META[9:]]
        after = self._call(node, "submit", rid, b"p", meta, (0, 0, 0, 0))
        if after is not None:
            after.is_begun = True
        return after

    def _handle_steps(self, node: Node, *handle: str) -> Iterator[Node | None]:
        for name, args, options in calls_of(*handle):
            yield self._call(node, name, *args, **options)

    def _refused(self, node: Node, dead: list[tuple[str, str, str]]) -> None:
        """S5: to a former owner every script says so and changes nothing."""
        if not dead:
            return
        model, key = self.protocol(node.state), node.key()
        model.at_ms = node.at_ms
        for handle in dead:
            for name, args, options in calls_of(*handle):
                self.n_steps += 1
                reply = model.run(name, *args, **options)
                words = reply[3] if name == "beat" else reply
                is_refused = words in (["LOST"], ["ALREADY"], ["GONE"], [handle[1]])
                self._checked((node.trail, (name, handle)), _is_true, is_refused, f"S5 {reply}")
        self._checked(
            (node.trail, dead), _is_true, node.key() == key, "S5 a former owner changed something"
        )

    def _end(self, node: Node, rid: str, how: str) -> Node | None:
        owner = node.state.live[rid].worker
        lives = {"part_ttl_ms": TTL_MS, "letters_max_bytes": 0}
        return self._call(node, "end", rid, how, "", "", owner, TTL_MS, ["api"], "", **lives)

    def _later(self, node: Node, ms: int) -> Node:
        """A second at a time with a tick each, then one step of the clock that is passed on to nobody."""
        after = self._copy(node, f"{ms} ms later", clock_steps=node.clock_steps + 1)
        model = self.protocol(after.state)
        for _ in range(ms // 1000):
            after.at_ms += 1000
            model.at_ms = after.at_ms
            model.run("tick", LEASE_MS, "api")
        return after

    def _copy(self, node: Node, what: Any, **changes: Any) -> Node:
        fields = {"state": node.state.copy(), "latest": dict(node.latest)} | changes
        return msgspec.structs.replace(node, trail=(node.trail, what), **fields)

    def _call(self, node: Node, name: str, *args: Any, **options: Any) -> Node | None:
        """The world after a call, or None where nothing has changed."""
        after = self._copy(node, (name, *args[:4]))
        model = self.protocol(after.state)
        model.at_ms = after.at_ms
        reply = model.run(name, *args, **options)
        self._checked(after.trail, self._check, node, after, name, args, reply)
        if after.state == node.state:
            return None
        if name not in PROGRESS:
            again = self.protocol(after.state.copy())
            again.at_ms = after.at_ms
            second = again.run(name, *args, **options)
            self._checked(after.trail, check_again, name, reply, second, after.state, again.state)
        return after

    def _checked(self, trail: tuple[Any, ...], check: Callable[..., None], *args: Any) -> None:
        try:
            check(*args)
        except AssertionError as error:
            raise AssertionError(f"{error}\nafter\n  {way(trail)}") from error

    def _check(
        self, node: Node, after: Node, name: str, args: tuple[Any, ...], reply: list[Any]
    ) -> None:
        if name == "claim":
            for rid, token, *_ in reply[5:]:
                handle = (args[0], rid, token)
                assert handle not in node.handles, f"S5 {handle} was given out twice"
                assert rid not in node.state.outcomes, f"S5 {rid} was given out after its end"
                after.handles |= {handle}
                after.latest[rid] = token
        elif name in ("finish", "nack") and reply[0] in ("OK", "DEAD"):
            rid, token = (args[0], args[2]) if name == "finish" else args[3][0]
            assert node.latest.get(rid) == token, f"S5 {rid} took something of a former owner"
        for rid, outcome in node.state.outcomes.items():
            assert after.state.outcomes.get(rid) == outcome, f"S6 the outcome of {rid} changed"
        lost = (node.state.live.keys() | node.state.outcomes.keys()) - (
            after.state.live.keys() | after.state.outcomes.keys()
        )
        assert not lost, f"S1 lost {lost}"
        told = [entry.rid for entry in after.state.outs["api"] if entry.outcome]
        assert len(told) == len(set(told)), "S6 told twice"


def calls_of(
    wid: str, rid: str, token: str
) -> Iterator[tuple[str, tuple[Any, ...], dict[str, Any]]]:
    """All that a worker may do with what it was granted."""
    yield "beat", (wid, LEASE_MS, 0, b"", {rid: (token, True)}), {}
    what = (rid, wid, token, "F", "", "", "{}", b"text", TTL_MS, TTL_MS, 0, ["api"], "")
    yield "finish", what, {"letters_max_bytes": 0}
    limits = {"max_attempts": 2, "max_crashes": 1, "delay_ms": 500}
    for how in ("release", "retry", "suspect"):
        yield "nack", (wid, how, "why", [(rid, token)]), limits


def is_owner(state: State, wid: str, rid: str, token: str) -> bool:
    record = state.live.get(rid)
    return record is not None and (record.worker, record.token) == (wid, token)


def _is_true(fact: bool, what: str) -> None:
    assert fact, what


def way(trail: tuple[Any, ...]) -> str:
    steps = []
    while trail:
        trail, what = trail
        steps.append(str(what))
    return "\n  ".join(reversed(steps))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.protocol.search", description=__doc__)
    parser.add_argument("--requests", type=int, choices=(1, 2), default=2)
    parser.add_argument("--claims", type=int, default=1, help="claims of each worker")
    parser.add_argument("--clock-steps", type=int, default=1, help="steps of 16 s")
    parser.add_argument("--rollbacks", type=int, choices=(0, 1), default=1)
    parser.add_argument(
        "--chained", action="store_true", help="the second request waits for the first"
    )
    args = parser.parse_args()
    bounds = Bounds(args.requests, args.claims, args.clock_steps, args.rollbacks, args.chained)
    search, since = Search(bounds), time.monotonic()
    search.run()
    print(
        f"states={search.n_states} steps={search.n_steps} depth={search.depth}"
        f" seconds={time.monotonic() - since:.1f}"
    )


if __name__ == "__main__":
    main()
