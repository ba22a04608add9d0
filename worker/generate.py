"""One micro-batch from claim to stored results: prompt, engine, think blocks, body and report by request id.

A request that fails costs itself alone. Knows no claiming and no beats beyond marking what has started.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from functools import cache, cached_property
from typing import Any, Protocol

import msgspec

from shared.errors import EngineDead, InvalidRequest, SluiceError, UnsupportedParameter
from shared.queue.consumer import Consumer, Finished
from shared.request import Body, FinishReason, Report, Req
from shared.sampling import SamplingParams
from worker.batcher import Item, MicroBatch
from worker.engines.base import Engine, EngineOutput, EnginePrompt
from worker.leases import Leases
from worker.metrics import WorkerMetrics
from worker.predecessors import with_predecessors
from worker.running import Running, Stop
from worker.think import Thinking

log = logging.getLogger(__name__)
ABORT_AGAIN_S = 1.0
# What a request may ask for and the worker itself does, whatever its engine.
OWN_POWERS = frozenset({"echo", "chat_template_kwargs"})


class Prompts(Protocol):
    """Turns a request into what the model reads, and knows how the model marks its reasoning.

    `build` raises PromptTooLong, InvalidRequest.
    """

    @property
    def thinking(self) -> Thinking: ...

    async def build(self, req: Req, max_model_len: int) -> EnginePrompt: ...


class Generator:
    """`on_free` is called whenever a request has left, with how many."""

    def __init__(
        self,
        engine: Engine,
        prompts: Prompts,
        consumer: Consumer,
        leases: Leases,
        metrics: WorkerMetrics,
        on_free: Callable[[int], None],
    ) -> None:
        self._engine = engine
        self._prompts = prompts
        self._consumer = consumer
        self._leases = leases
        self._metrics = metrics
        self._on_free = on_free
        self._running: dict[str, Running] = {}  # by the engine's id for it
        self._storing: set[asyncio.Task[None]] = set()
        self._aborting: set[asyncio.Task[None]] = set()
        self.is_stopping = False
        self.finished_total = 0
        self.output_tokens_total = 0

    @cached_property
    def _loop(self) -> asyncio.AbstractEventLoop:
        """Kept, since each look for it is a system call (getpid)."""
        return asyncio.get_running_loop()

    async def run(self, batch: MicroBatch) -> None:
        """Every request of the batch ends here: stored, given back, or settled. Raises EngineDead alone."""
        failure = self._engine.failure
        if self.is_stopping or failure is not None:
            await self._give_back(batch.items)
            if failure is not None:
                raise failure  # it died before these came, so they are no suspects
            return
        runs = [self._admit(item, batch) for item in batch.items]
        refused = self._refusal(batch.params)
        for run in runs:
            if run.stop is None:
                await self._prepare(run, refused)
        if self.is_stopping:
            self._cut(runs, Stop.RELEASE)
        runs = [run for run in runs if not self._has_ended(run)]
        if not runs:
            return
        self._leases.mark_started([run.item.grant for run in runs])
        # Figures are nobody's hurry: the engine gets the batch first.
        self._loop.call_soon(
            self._metrics.batch, batch.id, batch.bucket_key, len(runs), self._engine.slots
        )
        log.debug("batch %s: %d of bucket %s", batch.id, len(runs), batch.bucket_key)
        await self._generate(runs, batch)

    async def _generate(self, runs: Sequence[Running], batch: MicroBatch) -> None:
        left = {run.prompt.request_id: run for run in runs}
        now = time.monotonic()
        for run in runs:
            run.is_in_engine = True
            run.started_at = now
        cut = [run for run in runs if run.stop is not None]
        if cut:  # between two tries there was no engine to tell
            self._keep(self._abort(cut), self._aborting)
        try:
            prompts = [run.prompt for run in runs]
            async for piece in self._engine.generate(prompts, batch.params, stream=False):
                if isinstance(piece.error, EngineDead):
                    raise piece.error
                at = left.get(piece.request_id)
                if at is None or at.has_left:
                    continue
                at.take(piece)
                if piece.is_last:
                    del left[piece.request_id]
                    ending = self._end(self._conclude(at, piece), at)
                    if left:
                        self._keep(ending, self._storing)
                    else:
                        # A batch of one is the common case when there is little to do: no task.
                        await ending
        except EngineDead as error:
            log.error("the engine died under batch %s (%d running): %s", batch.id, len(left), error)
            raise  # everything that runs is handed back by `give_up`
        except Exception as error:
            await self._go_on_apart([run for run in left.values() if not run.has_left], error)
        else:
            for run in left.values():  # an engine that forgot one of its own
                if not run.has_left:
                    await self._end(self._retry(run, "no answer of the engine"), run)

    async def _go_on_apart(self, runs: Sequence[Running], error: Exception) -> None:
        """A batch failed as a whole: whoever is to blame shows alone, and its batchmates are answered."""
        for run in runs:
            run.is_in_engine = False
        if len(runs) == 1:
            log.error("batch %s failed", runs[0].batch.id, exc_info=error)
            await self._end(self._retry(runs[0], str(error)), runs[0])
        elif runs:
            log.warning("batch %s failed; its %d go on apart", runs[0].batch.id, len(runs))
            for run in runs:
                run.begin_again()
            alone = [run for run in runs if not self._has_ended(run)]
            await asyncio.gather(*(self._generate([run], run.batch) for run in alone))

    def stop(self, ids: Sequence[str], why: Stop) -> None:
        """Cut these short; what is not running here is ignored. The first reason stands."""
        wanted = set(ids)
        self._cut([run for run in self._running.values() if run.item.grant.id in wanted], why)

    def stop_all(self, why: Stop) -> None:
        self._cut(list(self._running.values()), why)

    def _cut(self, runs: Sequence[Running], why: Stop) -> None:
        fresh = [run for run in runs if run.stop is None and not run.is_ending]
        for run in fresh:
            run.stop = why
        if any(run.is_in_engine for run in fresh):
            self._keep(self._abort(fresh), self._aborting)

    async def _abort(self, runs: Sequence[Running]) -> None:
        """Again and again, since the first may come before the engine has taken the request in."""
        while ids := [run.prompt.request_id for run in runs if run.is_in_engine]:
            try:
                await self._engine.abort(ids)
            except Exception:
                log.exception("an abort failed")
            await asyncio.sleep(ABORT_AGAIN_S)

    def _has_ended(self, run: Running) -> bool:
        """Refused, or cut short while it was not in the engine, which then need not see it."""
        if run.stop is not None and not (run.is_ending or run.has_left):
            piece = EngineOutput(run.prompt.request_id, finish_reason=FinishReason.abort)
            self._store(self._conclude(run, piece), run)
        return run.is_ending or run.has_left

    async def give_up(self, cause: str | None) -> None:
        """Hand back whatever is left. With a `cause` the engine died, and who was in it is a suspect."""
        left = [run for run in self._running.values() if not run.is_ending]
        suspects = [run.item.grant for run in left if cause and run.is_in_engine]
        others = [run.item.grant for run in left if not (cause and run.is_in_engine)]
        try:
            await asyncio.gather(
                self._consumer.suspect(suspects, cause or ""), self._consumer.release(others)
            )
        finally:
            # Also where the broker was not heard in time: from here on nothing of it is this worker's.
            for run in left:
                self._leave(run)
            for task in self._aborting:
                task.cancel()

    async def settled(self) -> None:
        """Until every result so far is stored."""
        while self._storing:
            await asyncio.gather(*self._storing, return_exceptions=True)

    def _admit(self, item: Item, batch: MicroBatch) -> Running:
        """From here on it can be cut short; `_prepare` gives it its prompt."""
        name = item.grant.id
        if name in self._running:
            # It was lost and came back while the engine still ends the first run.
            name = f"{name}#{item.grant.token}"
        run = Running(item, batch, EnginePrompt(name, ()), self._prompts.thinking)
        self._running[name] = run
        left_s = max(0.0, item.deadline_at - time.monotonic())
        run.timer = self._loop.call_later(left_s, self._cut, [run], Stop.DEADLINE)
        return run

    async def _prepare(self, run: Running, refused: SluiceError | None) -> None:
        """The prompt, or its end with an error of its own."""
        req = run.item.req
        try:
            if refused is not None:
                raise refused
            if req.lora is not None and "lora" not in self._engine.capabilities.fields:
                raise UnsupportedParameter(f"lora: {self._engine.name} cannot do it", param="lora")
            if req.depends_on:
                req = await with_predecessors(req, self._consumer)
                run.item = msgspec.structs.replace(run.item, req=req)
            prompt = await self._prompts.build(req, self._engine.max_model_len)
            run.prompt = msgspec.structs.replace(
                prompt, request_id=run.prompt.request_id, max_tokens=req.sampling.max_tokens
            )
        except SluiceError as error:
            self._refuse(run, error.code, error.message)
        except Exception as error:
            log.exception("a prompt could not be built")
            self._refuse(run, "engine_error", f"the prompt could not be built: {error}")

    def _refusal(self, params: SamplingParams) -> SluiceError | None:
        name = lacking(params, self._engine.capabilities.fields)
        if name is None:
            return None
        return UnsupportedParameter(f"{name}: {self._engine.name} cannot do it", param=name)

    def _refuse(self, run: Running, code: str, message: str) -> None:
        if not run.has_left:
            report = self._report(run, FinishReason.error, None)
            self._store(self._finish(run, report, None, code, message), run)

    async def _conclude(self, run: Running, piece: EngineOutput) -> None:
        grant = run.item.grant
        await run.count_reasoning()
        report = self._report(run, piece.finish_reason, piece.stop_reason)
        is_cut = piece.finish_reason is FinishReason.abort
        if run.stop is Stop.LOST and (is_cut or piece.error is not None):
            await self._consumer.settle(grant, _unfinished(report))
        elif run.stop is Stop.RELEASE and is_cut:
            await self._consumer.release([grant])
        elif piece.error is not None:
            await self._fail(run, report, piece.error)
        elif run.stop is Stop.DEADLINE and is_cut:
            message = "the deadline passed while it ran"
            await self._finish(run, report, run.body(piece), "deadline_exceeded", message)
        elif is_cut:
            await self._retry(run, "the engine aborted it")
        else:
            await self._finish(run, report, run.body(piece), "", "")

    async def _fail(self, run: Running, report: Report, error: Exception) -> None:
        if isinstance(error, SluiceError) and error.retryable:
            await self._retry(run, str(error))
        else:
            code = error.code if isinstance(error, InvalidRequest) else "engine_error"
            await self._finish(run, report, None, code, str(error))

    async def _retry(self, run: Running, cause: str) -> None:
        await self._consumer.retry(run.item.grant, cause)

    async def _finish(
        self, run: Running, report: Report, body: Body | None, code: str, message: str
    ) -> None:
        grant = run.item.grant
        verdict = await self._consumer.finish(grant, report, body, code=code, message=message)
        if verdict is Finished.LOST and report.usage.completion_tokens:
            await self._consumer.settle(grant, _unfinished(report))
        if verdict in (Finished.LOST, Finished.GONE):
            log.info("the result of %s was not wanted any more (%s)", grant.id, verdict)
            self._metrics.fenced()
        else:
            self.finished_total += 1

    def _report(
        self, run: Running, finish_reason: FinishReason | None, stop_reason: str | int | None
    ) -> Report:
        report = run.report(self._engine.name, finish_reason, stop_reason)
        self.output_tokens_total += report.usage.completion_tokens
        self._loop.call_soon(self._metrics.tokens, report.usage)
        return report

    def _store(self, storing: Awaitable[None], run: Running) -> None:
        self._keep(self._end(storing, run), self._storing)

    def _keep(self, work: Coroutine[Any, Any, None], among: set[asyncio.Task[None]]) -> None:
        task = self._loop.create_task(work)
        among.add(task)
        task.add_done_callback(among.discard)

    def _end(self, storing: Awaitable[None], run: Running) -> Coroutine[Any, Any, None]:
        run.is_ending = True
        run.is_in_engine = False
        self._leases.mark_ended(run.item.grant)
        return self._stored(storing, run)

    async def _stored(self, storing: Awaitable[None], run: Running) -> None:
        try:
            await storing
        except Exception:
            # The lease runs out and the request moves on: nothing is lost, but it should be known.
            log.exception("the result of %s could not be stored", run.item.grant.id)
        finally:
            self._leave(run)

    def _leave(self, run: Running) -> None:
        if not run.has_left:
            self._forget(run)
            self._leases.drop(run.item.grant)
            self._on_free(1)

    def _forget(self, run: Running) -> None:
        run.has_left = True
        run.is_in_engine = False
        if run.timer is not None:
            run.timer.cancel()
        if self._running.get(run.prompt.request_id) is run:
            del self._running[run.prompt.request_id]

    async def _give_back(self, items: Sequence[Item]) -> None:
        await self._consumer.release([item.grant for item in items])
        for item in items:
            self._leases.drop(item.grant)
        self._on_free(len(items))


def _unfinished(report: Report) -> Report:
    """What a cancelled run used; how it would have ended is nobody's business any more."""
    return msgspec.structs.replace(report, finish_reason=None, stop_reason=None)


def lacking(params: SamplingParams, able: frozenset[str]) -> str | None:
    """The first field that asks for something and that the engine does not know."""
    for name, nothing in _beyond(able):
        if getattr(params, name) != nothing and not (params.is_greedy and name in _OF_CHANCE):
            return name
    return None


@cache
def _beyond(able: frozenset[str]) -> tuple[tuple[str, object], ...]:
    """What such an engine does not know: each field, and the value that asks for nothing."""
    return tuple((name, nothing) for name, nothing in _ASKS_NOTHING.items() if name not in able)


_OF_CHANCE = frozenset({"top_p", "top_k", "seed"})
_ASKS_NOTHING: dict[str, object] = {
    name: value
    for name, value in msgspec.structs.asdict(SamplingParams(max_tokens=1, min_tokens=0)).items()
    if name != "max_tokens" and name not in OWN_POWERS
}
