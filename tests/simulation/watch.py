"""What must come about soon where nothing is in the way: watched from beside while a run without faults goes on."""

from __future__ import annotations

import asyncio

from shared.worker_info import WorkerState
from tests.simulation.processes import Worker
from tests.simulation.world import World

LOOK_S = 0.5
# A bell that went unheard is made good by its time-out, and what a worker says of itself is a beat old.
CLAIMED_S = 2.0
ENDED_S = 2.5  # from a client's leaving to the end of its request, in the store and in the engine
READY = ("ready:0", "ready:1", "ready:2", "ready:R")


class Watch:
    """Queued beside a free slot; alive though its client has left; still there of a worker that has left."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._fault = world.ledger.fault
        self._ready_since: dict[str, float] = {}
        self._left: set[Worker] = set()

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await asyncio.sleep(LOOK_S)
            self._look_at_queued()
            self._look_at_abandoned()
            self.look_at_left()

    def _look_at_queued(self) -> None:
        world, now = self._world, self._world.loop.now
        if not any(_has_room(worker) for worker in world.open_workers):
            self._ready_since.clear()
            for ask in world.ledger.asks.values():
                ask.was_crowded = ask.was_crowded or not ask.endings
            return
        ready = {
            rid.decode()
            for shard in world.shards
            for name in READY
            for rid in world.client.zrange(shard.keys.fixed(name), 0, -1)
        }
        self._ready_since = {rid: self._ready_since.get(rid, now) for rid in sorted(ready)}
        for rid, since in self._ready_since.items():
            if now - since > CLAIMED_S:
                self._fault(f"{rid} is queued for {now - since:.1f} s beside a free slot")

    def _look_at_abandoned(self) -> None:
        world = self._world
        for rid, (api, at) in list(world.clients.left.items()):
            if world.loop.now - at < ENDED_S:
                continue
            del world.clients.left[rid]
            if not api.is_up or api.has_closed:
                continue
            world.ledger.counts["clients left"] += 1
            if world.shard_of(rid).record(rid) is not None:
                self._fault(f"{rid} lives on {ENDED_S} s after its client left")
            for worker in world.open_workers:
                if rid in worker.runs_on:
                    self._fault(f"{rid} runs on {ENDED_S} s after its client left")

    def look_at_left(self) -> None:
        """Of a worker that stopped in order the queue knows nothing."""
        for worker in self._world.workers:
            if worker.code != 0 or worker in self._left:
                continue
            self._left.add(worker)
            name = worker.consumer.name
            for shard in self._world.shards:
                key = shard.keys.fixed("wk")
                if any(self._world.client.hmget(key, [f"{kind}:{name}" for kind in "ibc"])):
                    self._fault(f"{name} has left and is still known to the queue")


def _has_room(worker: Worker) -> bool:
    if worker.is_draining or not hasattr(worker, "work"):
        return False
    info = worker.work.info()
    return info.state is WorkerState.READY and info.running < info.slots
