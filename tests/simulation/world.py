"""What a simulation is made of: the broker, front doors, workers, their clients, and what was said meanwhile."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Coroutine
from typing import Any

import msgspec
import redis

from shared.queue.snapshot import Caps
from shared.settings import QueueSettings
from tests.queue.harness import Shard
from tests.simulation.clients import Clients
from tests.simulation.ledger import Ask, Ledger
from tests.simulation.loop import SteadyTask, Stuck, VirtualLoop
from tests.simulation.network import Network, Weather
from tests.simulation.processes import Api, Process, Worker
from tests.simulation.server import SimServer
from worker.settings import EngineSettings

QUEUE = "sim"
RESTART_S = 1.0
# A client's call in a front door's process, and what to call it.
Visit = tuple[Api, SteadyTask, str]


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What a run is made of, drawn from its seed."""

    n_apis: int
    n_workers: int
    shards: int
    slots: int
    claim_max: int
    token_s: float
    lease_s: float
    drain_s: float
    fault_rate: float = 0.0
    slow_rate: float = 0.0
    slow_s: float = 0.0
    cap: int = 0
    is_calm: bool = False
    is_ample: bool = False  # time, for all that is asked


class World:
    def __init__(self, socket_path: str, seed: int, plan: Plan) -> None:
        self.chance = random.Random(seed)
        self.plan = plan
        self.trace: list[str] = []
        self.ledger = Ledger()
        self.weather = Weather(random.Random(seed + 1_000_003))
        self.loop = VirtualLoop(self._connect)
        self.server = SimServer(socket_path, self.loop, self.say)
        self.net = Network(self.server, self.weather, self.loop, self.say)
        self.clients = Clients(self.ledger, self.loop.time, Caps(requests=plan.cap))
        self.apis: list[Api] = []
        self.workers: list[Worker] = []
        self.visits: list[Visit] = []
        self.client: Any = redis.Redis(unix_socket_path=socket_path)
        self.shards = [Shard(self.client, QUEUE) for _ in range(plan.shards)]
        for number, shard in enumerate(self.shards):
            shard.keys = type(shard.keys)(QUEUE, number)
        self._settings = QueueSettings(
            redis_url="unix:///simulated",
            queue_name=QUEUE,
            shards=plan.shards,
            lease_s=plan.lease_s,
        )
        self._engine = EngineSettings(
            sim_first_token_s=plan.token_s, sim_token_s=plan.token_s, sim_slots=plan.slots
        )

    async def _connect(self, protocol_factory: Any) -> Any:
        return await self.net.connect(protocol_factory)

    def say(self, who: str, what: str) -> None:
        self.trace.append(f"{self.loop.age_s:9.4f} {who:10} {what}")

    def rid(self, name: str, shard: int = 0) -> str:
        return f"{QUEUE}.{shard}-{name}"

    def shard_of(self, rid: str) -> Shard:
        return self.shards[shard_of(rid)]

    # --- processes

    @property
    def counts(self) -> Counter[str]:
        """How often each kind of thing came about."""
        orphans = sum(worker.orphans for worker in self.workers)
        return self.ledger.counts + self.server.repeats + Counter({"orphans given back": orphans})

    def start_api(self) -> Api:
        api = Api(f"api{len(self.apis)}", self.net, self._settings)
        self.apis.append(api)
        self.say(api.name, "starts")
        return api

    def start_worker(self) -> Worker:
        name = f"w{len(self.workers)}"
        plan = self.plan
        worker = Worker(
            name,
            self.net,
            self._settings,
            self._engine,
            claim_max=plan.claim_max,
            drain_s=plan.drain_s,
        )
        self.workers.append(worker)
        self.say(name, "starts")
        return worker

    @property
    def open_apis(self) -> list[Api]:
        return [a for a in self.apis if a.is_up and not a.has_closed and hasattr(a, "producer")]

    @property
    def open_workers(self) -> list[Worker]:
        return [w for w in self.workers if w.is_up and w.code is None]

    @property
    def processes(self) -> list[Process]:
        return [*self.apis, *self.workers]

    def kill(self, process: Process) -> None:
        self.say(process.name, "is killed")
        process.kill()

    def keep_a_worker(self) -> None:
        if not any(not worker.is_draining for worker in self.open_workers):
            self.start_worker()

    async def supervise(self) -> None:
        """Until cancelled: a worker that ends in any other way than by being asked to is started again."""
        replaced: set[str] = set()
        while True:
            await asyncio.sleep(RESTART_S)
            for worker in list(self.workers):
                if worker.code in (1, 4) and worker.name not in replaced:
                    self.say(worker.name, f"ended with {worker.code}")
                    replaced.add(worker.name)
                    self.start_worker()

    # --- clients

    def visit(self, api: Api, coro: Coroutine[Any, Any, Any], what: str) -> SteadyTask:
        self.say(api.name, what)
        task = api.spawn(coro)
        self.visits.append((api, task, what))
        return task

    @property
    def visiting(self) -> list[Visit]:
        """Those whose call is not over, where their front door is still there."""
        return [visit for visit in self.visits if visit[0].is_up and not visit[1].done()]

    def new_ask(self, name: str, text: str, *, shard: int = 0, n: int = 0, timeout_s: float) -> Ask:
        rid = self.rid(name, shard)
        return self.ledger.add(Ask(rid, text, n=n, timeout_s=timeout_s, at=self.loop.now))

    # --- the end

    def calm(self) -> None:
        """No more faults; what is held goes on."""
        self.say("", "faults are over")
        self.weather.quiet()
        server = self.server
        server.turned_away, server.is_full = None, False
        if server.is_stopped:
            server.go_on()
        if server.is_away:
            server.come_back()
        for process in self.processes:
            if process.is_up:
                process.hold(False)
                process.hold(False, only_loop=True)

    async def dispose(self) -> None:
        """What was killed is closed in order, unseen, so that no task is left to the collector."""
        for process in self.processes:
            process.host.is_ghost = True
            self.loop.go_on(process.host)
            for link in list(process.host.links):
                link.close()
        for _ in range(20):
            for process in self.processes:
                process.bury()
            await asyncio.sleep(3)
            if not any(process.host.pending() for process in self.processes):
                return
        left = [task for process in self.processes for task in process.host.pending()]
        raise Stuck(f"cannot be cancelled: {left}")


def shard_of(rid: str) -> int:
    return int(rid.split(".")[1].split("-")[0])
