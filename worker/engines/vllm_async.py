"""vLLM's `AsyncLLM`: continuous batching in a child process. Every row is free, so buckets run side by side.

Owns the object and the runs of its requests; what is the same for both of vLLM's engines is `vllm_start.py`'s.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from typing import Any

from shared.request import FinishReason
from shared.sampling import SamplingParams
from worker.engines.base import EngineDead, EngineOutput, EnginePrompt
from worker.engines.stop_tokens import StopRules, Stops
from worker.engines.vllm_start import CAPABILITIES, CLOSE_S, Launch
from worker.engines.vllm_terms import NativeParams, piece_of, request_error
from worker.settings import EngineSettings

log = logging.getLogger(__name__)
ANSWER_S = 60.0  # the model is loaded by then, so this is one message and its answer


class VllmAsyncEngine:
    name = "vllm_async"
    capabilities = CAPABILITIES

    def __init__(self, settings: EngineSettings, arguments: dict[str, Any]) -> None:
        self._arguments = arguments
        self._launch = Launch(settings, arguments)
        self._engine: Any = None
        self._natives = NativeParams(StopRules())
        self._waiting: set[str] = set()
        self._aborted: set[str] = set()
        self._steps = 0

    async def start(self) -> None:
        """Takes a minute on a CPU, in a thread: the loop stays free for signals."""
        try:
            await asyncio.to_thread(self._load)
            # Kept by vLLM: no request waits for it later. A process that dies now would never answer.
            async with asyncio.timeout(ANSWER_S):
                await self._engine.get_supported_tasks()
        except Exception as error:
            refused = self._launch.refused(error)
            await self.close()
            raise refused from error
        self._launch.began()

    def _load(self) -> None:
        arguments = self._launch.prepare()
        from vllm.engine.arg_utils import AsyncEngineArgs
        from vllm.v1.engine.async_llm import AsyncLLM

        # Kept here and not returned: the thread would hold it, and it is to go when it is closed.
        self._engine = AsyncLLM.from_engine_args(
            AsyncEngineArgs(**arguments), stat_loggers=[self._step_counter()]
        )
        config = self._engine.model_config
        tokenizer = self._engine.renderer.tokenizer
        self._natives = NativeParams(StopRules.of(tokenizer, int(config.get_vocab_size())))

    def _step_counter(self) -> Any:
        """vLLM calls `record` on each step of the engine, also while no text comes out."""
        from vllm.v1.metrics.loggers import StatLoggerBase

        engine = self

        class StepCounter(StatLoggerBase):  # type: ignore[misc]
            def __init__(self, vllm_config: Any, engine_index: int = 0) -> None:
                """Needs nothing of the configuration."""

            def record(self, *args: Any, **kwargs: Any) -> None:
                engine._steps += 1

            def log_engine_initialized(self) -> None:
                """Told in the start-up report."""

        return StepCounter

    @property
    def max_model_len(self) -> int:
        return int(self._engine.model_config.max_model_len)

    @property
    def slots(self) -> int:
        return self._launch.slots

    @property
    def progress(self) -> int:
        return self._steps

    @property
    def failure(self) -> EngineDead | None:
        """vLLM watches its processes in a thread of its own and raises only on the next call."""
        engine = self._engine
        if engine is None or not engine.errored:
            return None
        return self._launch.dead(engine.dead_error)

    async def generate(
        self, prompts: Sequence[EnginePrompt], params: SamplingParams, *, stream: bool
    ) -> AsyncIterator[EngineOutput]:
        try:
            runs = [(p, *self._natives.of(p.own(params), stream)) for p in prompts]
        except Exception as error:
            # vLLM's own checks of the parameters: the whole bucket shares them.
            for prompt in prompts:
                yield EngineOutput(prompt.request_id, error=request_error(error))
            return
        pieces: asyncio.Queue[EngineOutput | EngineDead] = asyncio.Queue()
        self._waiting.update(prompt.request_id for prompt in prompts)
        tasks = [asyncio.create_task(self._run(*run, pieces)) for run in runs]
        left = len(prompts)
        try:
            while left:
                piece = await pieces.get()
                if isinstance(piece, EngineDead):
                    raise piece
                left -= piece.is_last
                yield piece
        finally:
            for task in tasks:
                task.cancel()  # a run that is cut off this way is aborted inside vLLM
            await asyncio.gather(*tasks, return_exceptions=True)
            ids = {prompt.request_id for prompt in prompts}
            self._waiting -= ids
            self._aborted -= ids

    async def _run(
        self,
        prompt: EnginePrompt,
        native: Any,
        stops: Stops,
        pieces: asyncio.Queue[EngineOutput | EngineDead],
    ) -> None:
        """One request's outputs into the batch's queue; without streaming there is but one."""
        from vllm.v1.engine.exceptions import EngineDeadError

        rid = prompt.request_id
        self._waiting.discard(rid)
        if rid in self._aborted:
            pieces.put_nowait(EngineOutput(rid, finish_reason=FinishReason.abort))
            return
        rendered = {"type": "token", "prompt_token_ids": list(prompt.token_ids)}
        try:
            async for output in self._engine.generate(rendered, native, rid):
                pieces.put_nowait(piece_of(rid, output, stops))
        except EngineDeadError as error:
            pieces.put_nowait(self._launch.dead(error))
        except Exception as error:
            pieces.put_nowait(EngineOutput(rid, error=request_error(error)))

    async def abort(self, request_ids: Sequence[str]) -> None:
        # Handed to us but not yet to vLLM, which would ignore the id.
        self._aborted.update(rid for rid in request_ids if rid in self._waiting)
        if self._engine is not None and not self._engine.errored:
            await self._engine.abort(list(request_ids))

    def effective_args(self) -> dict[str, Any]:
        found = dict(self._arguments)
        if self._engine is not None:
            found["max_model_len"] = self.max_model_len
        return found

    async def close(self) -> None:
        """No process of the engine outlives this, hung or not."""
        engine, self._engine = self._engine, None
        self._launch.look()
        if engine is not None:
            try:
                await asyncio.to_thread(engine.shutdown, CLOSE_S)
            except Exception:
                log.exception("vLLM did not shut down in order")
            del engine
        await self._launch.end()
