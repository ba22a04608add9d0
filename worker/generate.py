"""One micro-batch from claim to stored results: prompt, engine, think blocks, body and report by request id.

A request that fails costs itself alone. Knows no claiming and no beats beyond marking what has started.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from enum import Enum, auto
from typing import Protocol

from shared.errors import EngineDead, PromptTooLong, SluiceError, UnsupportedParameter
from shared.queue.consumer import Consumer, Finished
from shared.request import Body, FinishReason, Report, Req, Usage
from worker.batcher import Item, MicroBatch
from worker.engines.base import Engine, EngineOutput, EnginePrompt
from worker.leases import Leases
from worker.metrics import WorkerMetrics
from worker.think import opens_block, split_think

log = logging.getLogger(__name__)


class Prompts(Protocol):
    """Turns a request into what the model reads. Raises PromptTooLong, InvalidRequest."""

    async def build(self, req: Req, max_model_len: int) -> EnginePrompt: ...


class Stop(Enum):
    """Why a run is cut short: its lease is lost, its time is over, or the worker stops."""

    LOST = auto()
    DEADLINE = auto()
    RELEASE = auto()


class _Running:
    """One request inside the engine. The pieces gather here until the last."""

    __slots__ = ("batch", "cached", "ids", "item", "prompt", "started_at", "stop", "text", "timer")

    def __init__(self, item: Item, batch: MicroBatch, prompt: EnginePrompt) -> None:
        self.item = item
        self.batch = batch
        self.prompt = prompt
        self.text: list[str] = []
        self.ids: list[int] = []
        self.cached = 0
        self.started_at = time.monotonic()
        self.stop: Stop | None = None
        self.timer: asyncio.TimerHandle | None = None


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
        self._running: dict[str, _Running] = {}
        self._storing: set[asyncio.Task[None]] = set()
        self.is_stopping = False
        self.finished_total = 0
        self.output_tokens_total = 0

    async def run(self, batch: MicroBatch) -> None:
        """Every request of the batch ends here: stored, given back, or settled. Raises EngineDead alone."""
        if self.is_stopping:
            await self._give_back(batch.items)
            return
        runs = [
            run for item in batch.items if (run := await self._prepare(item, batch)) is not None
        ]
        if not runs:
            return
        self._leases.mark_started([run.item.grant.id for run in runs])
        self._metrics.batch(len(runs), self._engine.slots)
        log.debug("batch %s: %d of bucket %s", batch.id, len(runs), batch.bucket_key)
        by_id = {run.item.grant.id: run for run in runs}
        try:
            prompts = [run.prompt for run in runs]
            async for piece in self._engine.generate(prompts, batch.params, stream=False):
                run = by_id[piece.request_id]
                run.text.append(piece.text)
                run.ids.extend(piece.token_ids)
                run.cached = piece.cached_tokens or run.cached
                if piece.is_last:
                    del by_id[piece.request_id]
                    self._store(self._conclude(run, piece), run)
        except EngineDead as error:
            grants = [run.item.grant for run in by_id.values()]
            log.error(
                "the engine died under batch %s (%d running): %s", batch.id, len(grants), error
            )
            await self._consumer.suspect(grants, str(error))
            for run in by_id.values():
                self._leave(run)
            raise
        except Exception as error:
            log.exception("batch %s failed as a whole; its requests are tried again", batch.id)
            for run in by_id.values():
                self._store(self._consumer.retry(run.item.grant, str(error)), run)
        else:
            for run in by_id.values():  # an engine that forgot one of its own
                self._store(self._consumer.retry(run.item.grant, "no answer of the engine"), run)

    def stop(self, ids: Sequence[str], why: Stop) -> None:
        """Cut these short; what is not running here is ignored. The first reason stands."""
        found = [self._running[rid] for rid in ids if rid in self._running]
        fresh = [run for run in found if run.stop is None]
        for run in fresh:
            run.stop = why
        if fresh:
            names = [run.item.grant.id for run in fresh]
            task = asyncio.ensure_future(self._engine.abort(names))
            self._storing.add(task)
            task.add_done_callback(self._storing.discard)

    @property
    def running_ids(self) -> list[str]:
        return list(self._running)

    async def settled(self) -> None:
        """Until every result so far is stored."""
        while self._storing:
            await asyncio.gather(*self._storing, return_exceptions=True)

    async def _prepare(self, item: Item, batch: MicroBatch) -> _Running | None:
        """None: it ended before the engine, with its own error."""
        try:
            self._check_fields(item.req)
            prompt = await self._prompts.build(item.req, self._engine.max_model_len)
        except SluiceError as error:
            self._refuse(item, batch, error.code, error.message)
            return None
        except Exception as error:
            log.exception("a prompt could not be built")
            self._refuse(item, batch, "engine_error", f"the prompt could not be built: {error}")
            return None
        run = _Running(item, batch, prompt)
        rid = item.grant.id
        self._running[rid] = run
        loop = asyncio.get_running_loop()
        left_s = max(0.0, item.deadline_at - time.monotonic())
        run.timer = loop.call_later(left_s, self.stop, [rid], Stop.DEADLINE)
        return run

    def _check_fields(self, req: Req) -> None:
        able = self._engine.capabilities.fields
        for name, default in _OPTIONAL.items():
            if getattr(req.sampling, name) != default and name not in able:
                raise UnsupportedParameter(f"{name}: {self._engine.name} cannot do it", param=name)

    def _refuse(self, item: Item, batch: MicroBatch, code: str, message: str) -> None:
        run = _Running(item, batch, EnginePrompt(item.grant.id, ()))
        report = self._report(run, FinishReason.error, None)
        self._store(
            self._finish(run, report, None, code, message),
            run,
        )

    async def _conclude(self, run: _Running, piece: EngineOutput) -> None:
        grant = run.item.grant
        report = self._report(run, piece.finish_reason, piece.stop_reason)
        if run.stop is Stop.LOST:
            await self._consumer.settle(grant.id, grant.token, report.usage)
        elif run.stop is Stop.RELEASE and piece.finish_reason in (None, FinishReason.abort):
            await self._consumer.release([grant])
        elif piece.error is not None:
            code = piece.error.code if isinstance(piece.error, PromptTooLong) else "engine_error"
            await self._finish(run, report, None, code, str(piece.error))
        else:
            body = self._body(run, piece)
            if run.stop is Stop.DEADLINE and piece.finish_reason is FinishReason.abort:
                message = "the deadline passed while it ran"
                await self._finish(run, report, body, "deadline_exceeded", message)
            elif piece.finish_reason is FinishReason.abort:
                await self._consumer.retry(grant, "the engine aborted it")
            else:
                await self._finish(run, report, body, "", "")

    async def _finish(
        self, run: _Running, report: Report, body: Body | None, code: str, message: str
    ) -> None:
        grant = run.item.grant
        verdict = await self._consumer.finish(grant, report, body, code=code, message=message)
        if verdict is Finished.LOST and report.usage.completion_tokens:
            await self._consumer.settle(grant.id, grant.token, report.usage)
        if verdict in (Finished.LOST, Finished.GONE):
            log.info("the result of %s was not wanted any more (%s)", grant.id, verdict)
            self._metrics.fenced()
        else:
            self.finished_total += 1

    def _body(self, run: _Running, piece: EngineOutput) -> Body:
        # A thinking model's template may end the prompt with the opening tag.
        opens = opens_block(run.prompt.text)
        answer = split_think("".join(run.text), template_opens=opens)
        text = run.prompt.text + answer.text if run.item.req.sampling.echo else answer.text
        return Body(
            text=text,
            token_ids=tuple(run.ids),
            reasoning=answer.reasoning,
            logprobs=piece.logprobs,
        )

    def _report(
        self, run: _Running, finish_reason: FinishReason | None, stop_reason: str | int | None
    ) -> Report:
        usage = Usage(len(run.prompt.token_ids), len(run.ids), run.cached)
        self.output_tokens_total += usage.completion_tokens
        self._metrics.tokens(usage)
        return Report(
            finish_reason=finish_reason,
            stop_reason=stop_reason,
            usage=usage,
            inference_s=time.monotonic() - run.started_at,
            batch_id=run.batch.id,
            batch_size=len(run.batch),
            bucket_key=run.batch.bucket_key,
            engine=self._engine.name,
        )

    def _store(self, storing: Awaitable[None], run: _Running) -> None:
        task = asyncio.ensure_future(self._stored(storing, run))
        self._storing.add(task)
        task.add_done_callback(self._storing.discard)

    async def _stored(self, storing: Awaitable[None], run: _Running) -> None:
        try:
            await storing
        except Exception:
            # The lease runs out and the request moves on: nothing is lost, but it should be known.
            log.exception("the result of %s could not be stored", run.item.grant.id)
        finally:
            self._leave(run)

    def _leave(self, run: _Running) -> None:
        if run.timer is not None:
            run.timer.cancel()
        self._running.pop(run.item.grant.id, None)
        self._leases.drop(run.item.grant.id)
        self._on_free(1)

    async def _give_back(self, items: Sequence[Item]) -> None:
        await self._consumer.release([item.grant for item in items])
        for item in items:
            self._leases.drop(item.grant.id)
        self._on_free(len(items))


# Fields that an engine may lack, with the value that asks for nothing.
_OPTIONAL: dict[str, object] = {
    "logprobs": None,
    "seed": None,
    "min_tokens": 0,
    "stop_token_ids": (),
    "ignore_eos": False,
}
