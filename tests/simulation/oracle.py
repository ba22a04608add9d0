"""The verdict over a run: the store's invariants while it goes on, and at its end what is left and what was told."""

from __future__ import annotations

from tests.simulation.ledger import Ask
from tests.simulation.processes import Worker
from tests.simulation.world import Visit, World

# Empty when nothing is live.
SETS = (
    *("in", "live", "ready:0", "ready:1", "ready:2", "ready:R", "ready:S"),
    *("later", "lease", "when", "deps", "resv"),
)
# How a run without faults may end what it was asked.
CALM_CODES = frozenset(
    {
        *("", "cancelled", "client_gone", "wait_timeout", "engine_error", "dependency_failed"),
        *("expired", "deadline_exceeded"),
    }
)
# What a request may be told that had time: it finished, or its engine failed it alone.
ANSWERED = frozenset({"", "engine_error"})
AMPLE_S = 20.0  # in a run without faults and with a slot free


class Oracle:
    def __init__(self, world: World) -> None:
        self._world = world
        self._fault = world.ledger.fault

    def check(self) -> None:
        """What must hold of the store at every moment."""
        for shard in self._world.shards:
            try:
                shard.check()
            except AssertionError as error:
                self._fault(f"the store is not in order: {str(error)[:300]}")

    def judge_visit(self, visit: Visit) -> None:
        """A call that is over has an answer or an error that a client understands."""
        api, task, what = visit
        if task.done() and not task.cancelled():
            error = task.exception()
            if error is not None and not isinstance(error, TimeoutError):
                self._fault(f"{api.name}: {what}: {error!r} {error}")

    def judge(self) -> None:
        world = self._world
        for visit in world.visits:
            self.judge_visit(visit)
        self.check()
        for shard in world.shards:
            for name in SETS:
                self._judge_empty(shard.keys.fixed(name))
        for ask in list(world.ledger.asks.values()):
            self._judge_outcome(ask)
            self._judge_ample(ask)
            self._judge_chain(ask)
            self._count(ask)
            self._judge_callbacks(ask)

    def judge_closed(self) -> None:
        """Of processes that ended in order."""
        for process in self._world.processes:
            if not process.is_up:
                continue
            for task in process.host.pending():
                self._fault(f"{process.name} leaves a task: {task!r}")
            if any(thread.is_alive() for thread in process.host.threads):
                self._fault(f"{process.name} leaves a thread")
            if isinstance(process, Worker) and process.code == 0 and process.runs_on:
                self._fault(f"{process.name} leaves runs: {process.runs_on}")

    def judge_idle(self) -> None:
        """Of front doors whose clients have all been served."""
        for api in self._world.open_apis:
            if api.producer.waiting:
                self._fault(f"{api.name} waits for {api.producer.waiting} though nobody asks")

    def _judge_empty(self, key: str) -> None:
        client = self._world.client
        kind = client.type(key)
        if kind == b"none" or (kind == b"stream" and not client.xlen(key)):
            return
        rows = client.zrange(key, 0, 4, withscores=True) if kind == b"zset" else kind
        self._fault(f"{key} is not empty: {rows}")

    def _judge_outcome(self, ask: Ask) -> None:
        ledger = self._world.ledger
        outcome = self._world.shard_of(ask.id).outcome(ask.id)
        if outcome is None:
            if ask.accepted_at is not None and not ledger.may_be_wiped(ask):
                self._fault(f"{ask.id} was accepted and has no outcome")
            return
        ledger.ended(ask, "the store", outcome)
        if outcome.attempts:
            self._fault(f"{ask.id} counts {outcome.attempts} attempts, and no engine failed so")
        plan = self._world.plan
        is_over = outcome.code in ("expired", "deadline_exceeded") and ask.timeout_s >= AMPLE_S
        if plan.is_calm and is_over and not (ask.was_crowded or ask.after):
            self._fault(f"{ask.id} is over as {outcome.code} though slots were free all its life")
        if plan.is_calm and (outcome.crashes or outcome.code not in CALM_CODES):
            found = f"{outcome.crashes} crashes and the code {outcome.code!r}"
            self._fault(f"{ask.id} has {found} though nothing was in its way")

    def _judge_ample(self, ask: Ask) -> None:
        """What was accepted in a run with time for all of it is answered, whatever happened to the broker."""
        is_simple = ask.owns and not (ask.parent or ask.n or ask.after or ask.has_left)
        if not (self._world.plan.is_ample and is_simple) or ask.accepted_at is None:
            return
        told = {end[1] for _, end in ask.endings} | ({"broker_lost"} if ask.is_lost else set())
        if not told or told - ANSWERED:
            self._fault(f"{ask.id} had ample time and was told {sorted(told)}")

    def _judge_chain(self, ask: Ask) -> None:
        """It ran where all that it depends on finished, and only there."""
        told = [ask, *ask.after]
        if not all(one.endings for one in told) or any(map(self._world.ledger.may_be_wiped, told)):
            return
        state, code = ask.endings[-1][1][:2]
        has_failed = any(before.endings[-1][1][0] != "F" for before in ask.after)
        if (state == "F" and has_failed) or (code == "dependency_failed" and not has_failed):
            befores = [(before.id, before.endings[-1]) for before in ask.after]
            self._fault(f"{ask.id} ended as {ask.endings[-1]} after {befores}")

    def _count(self, ask: Ask) -> None:
        counts, end = self._world.ledger.counts, ask.endings[-1][1] if ask.endings else None
        counts["chains"] += bool(ask.after) and end is not None and end[0] == "F"
        counts["children"] += ask.n > 0 and end is not None

    def _judge_callbacks(self, ask: Ask) -> None:
        for who, n in ask.callbacks.items():
            api = next(a for a in self._world.apis if a.name == who.split("/")[0])
            if n > 1 or (n == 0 and api.is_up):
                self._fault(f"the callback of {ask.id} by {who} was called {n} times")
