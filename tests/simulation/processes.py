"""The processes of a simulation: front doors and workers, of the product's own classes over simulated connections."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Coroutine, Sequence
from typing import Any

import msgspec

from shared import codec
from shared.errors import EngineDead, EngineError
from shared.queue.claiming import Grant
from shared.queue.connection import Connection, SyncLine
from shared.queue.consumer import Consumer, Finished
from shared.queue.housekeeper import Housekeeper
from shared.queue.line import REPLY_S
from shared.queue.producer import Producer
from shared.request import Body, FinishReason, Report
from shared.sampling import SamplingParams
from shared.settings import QueueSettings
from shared.worker_info import WorkerInfo, WorkerState
from tests.simulation.loop import Host, SteadyTask, VirtualLoop
from tests.simulation.network import Network, ThreadClient
from tests.worker.scripted_engine import PlainPrompts
from worker.engines.base import EngineOutput, EnginePrompt
from worker.engines.simulated import SimulatedEngine
from worker.loop import Loop
from worker.metrics import WorkerMetrics
from worker.settings import EngineSettings

STALL_LIMIT_S = 3.0
POISON, WEDGE, FAIL = "poison", "wedge", "fail"
DYING_S = 0.3
PIECE, SAY_S = 5, 0.05


class SimConnection(Connection):
    def __init__(self, settings: QueueSettings, net: Network) -> None:
        super().__init__(settings)
        self._net = net

    def sync_line(self) -> SyncLine:
        return _SimSyncLine(self._net)


class _SimSyncLine(SyncLine):
    def __init__(self, net: Network) -> None:
        self._client = ThreadClient(net, REPLY_S)


class SayingConsumer(Consumer):
    """Tells the readers of a streamed request its text piece by piece before it stores it. Counts orphans."""

    orphans = 0

    async def release_ids(self, held: Sequence[tuple[str, str]]) -> None:
        self.orphans += len(held)
        await super().release_ids(held)

    async def finish(
        self, grant: Grant, report: Report, body: Body | None, *, code: str = "", message: str = ""
    ) -> Finished:
        if body is not None and codec.decode_req(grant.payload).stream:
            emission = self.emission(grant)
            for start in range(0, len(body.text), PIECE):
                self.emit(emission, body.text[start : start + PIECE])
                await asyncio.sleep(SAY_S)
                await self.flush()
        return await super().finish(grant, report, body, code=code, message=message)


class Engine(SimulatedEngine):
    """`poison …` kills it, `wedge …` stops it for good, `fail …` fails alone."""

    def __init__(self, settings: EngineSettings) -> None:
        super().__init__(settings)
        self._dead: EngineDead | None = None
        self._is_wedged = False

    @property
    def failure(self) -> EngineDead | None:
        return self._dead

    @property
    def progress(self) -> int:
        """A real one makes steps all the time, also where no answer is complete yet."""
        if not self._is_wedged:
            self._progress = int(time.monotonic() * 10)
        return self._progress

    @property
    def running(self) -> list[str]:
        """Ids that it has not ended; none where it never will."""
        rows = {} if self._is_wedged else self._rows
        return [rid for rid, (row, _) in rows.items() if not row.is_over]

    def _die(self) -> None:
        self._dead = EngineDead("killed by a prompt")
        for _, bell in self._rows.values():
            bell.set()

    async def generate(
        self, prompts: Sequence[EnginePrompt], params: SamplingParams, *, stream: bool
    ) -> AsyncIterator[EngineOutput]:
        texts = {prompt.request_id: prompt.text for prompt in prompts}
        if any(text.startswith(POISON) for text in texts.values()):
            asyncio.get_running_loop().call_later(DYING_S, self._die)
        self._is_wedged |= any(text.startswith(WEDGE) for text in texts.values())
        async for piece in super().generate(prompts, params, stream=stream):
            is_cut = piece.finish_reason is FinishReason.abort
            if texts[piece.request_id].startswith(FAIL) and not is_cut:
                piece = msgspec.structs.replace(piece, error=EngineError("it failed"))
            yield piece

    async def _wait(self, until: float, bell: asyncio.Event) -> None:
        await super()._wait(until, bell)
        if self._is_wedged:
            await asyncio.Event().wait()
        if self._dead is not None:
            raise self._dead


class Process:
    def __init__(self, name: str, net: Network, settings: QueueSettings) -> None:
        self.name = name
        self.host = Host(name)
        self._net = net
        self._loop: VirtualLoop = net.loop
        self._settings = settings
        self.connection: SimConnection | None = None

    def spawn(self, coro: Coroutine[Any, Any, Any]) -> SteadyTask:
        task = self._loop.create_task(coro, context=self.host.context.copy())
        assert isinstance(task, SteadyTask)
        return task

    @property
    def is_up(self) -> bool:
        return not self.host.is_dead

    def kill(self) -> None:
        """SIGKILL: nothing more runs; its connections close."""
        self.host.vanish()
        for link in list(self.host.links):
            link.close()

    def bury(self) -> None:
        """As a ghost: what it had open is closed, so that nobody complains of it."""
        for thread in self.host.threads:
            thread.kill()
        for task in self.host.pending():
            task.cancel()
        if self.connection is not None:
            self.spawn(self.connection.close())

    def hold(self, is_on: bool, *, only_loop: bool = False) -> None:
        """SIGSTOP and SIGCONT; `only_loop`: a call blocks the event loop, threads go on."""
        if only_loop:
            self.host.is_loop_held = is_on
        else:
            self.host.is_held = is_on
        if not is_on:
            self._loop.go_on(self.host)


class Api(Process):
    def __init__(self, name: str, net: Network, settings: QueueSettings) -> None:
        super().__init__(name, net, settings)
        self.has_closed = False
        self.spawn(self._start())

    async def _start(self) -> None:
        self.connection = SimConnection(self._settings, self._net)
        self.producer = Producer(self.connection, self._settings, api_id=self.name)
        await self.producer.start()

    async def close(self) -> None:
        """As the front door's process does at its end. Run it in the process."""
        self.has_closed = True
        await self.producer.close()
        if self.connection is not None:
            await self.connection.close()


class Worker(Process):
    """`code` is its exit code once it has ended by itself."""

    def __init__(
        self,
        name: str,
        net: Network,
        settings: QueueSettings,
        engine: EngineSettings,
        *,
        claim_max: int,
        drain_s: float,
    ) -> None:
        super().__init__(name, net, settings)
        self._engine_settings = engine
        self._claim_max = claim_max
        self._drain_s = drain_s
        self.code: int | None = None
        self.is_draining = False
        self.task = self.spawn(self._run())

    async def _run(self) -> None:
        connection = self.connection = SimConnection(self._settings, self._net)
        consumer = self.consumer = SayingConsumer(connection, self._settings, worker_id=self.name)
        engine = self._engine = Engine(self._engine_settings)
        self.work = Loop(
            engine,
            PlainPrompts(),
            consumer,
            info=WorkerInfo(id=self.name, state=WorkerState.READY, slots=engine.slots),
            metrics=WorkerMetrics(self.name, engine.name),
            claim_max=self._claim_max,
            drain_s=self._drain_s,
            stall_limit_s=STALL_LIMIT_S,
            on_stalled=self._on_stalled,
        )
        housekeeping = asyncio.create_task(Housekeeper(connection, self._settings).run())
        try:
            code = await self.work.run()
        finally:
            housekeeping.cancel()
            await asyncio.gather(housekeeping, return_exceptions=True)
            await engine.close()
            await connection.close()
        self.code = code

    def _on_stalled(self, seconds: float) -> None:
        if seconds > self._settings.lease_s:
            self._loop.call_soon(self._exit, context=self._net.context)

    @property
    def orphans(self) -> int:
        """Grants that a beat told of and that were given back."""
        return self.consumer.orphans if hasattr(self, "consumer") else 0

    @property
    def runs_on(self) -> list[str]:
        """What its engine still has."""
        return self._engine.running

    @property
    def is_stalled(self) -> bool:
        return hasattr(self, "work") and self.work.info().state is WorkerState.STALLED

    def _exit(self) -> None:
        if self.is_up:
            self.code = 4
            self.kill()

    def drain(self) -> None:
        self.is_draining = True
        if self.host.is_held or self.host.is_loop_held:
            return
        self._loop.call_soon(self._stop, context=self.host.context.copy())

    def _stop(self) -> None:
        if hasattr(self, "work"):
            self.work.stop()
