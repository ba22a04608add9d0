"""vLLM's `AsyncLLM`: continuous batching in a child process. Every row is free, so buckets run side by side.

Owns engine arguments, the child process, and the translation of parameters, outputs and errors.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import re
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

from shared.request import FinishReason
from shared.sampling import SamplingParams
from worker.engines.base import Capabilities, EngineDead, EngineError, EngineOutput, EnginePrompt
from worker.engines.children import Children
from worker.engines.devices import CPU_KV_CACHE_BYTES, Device, cpu_device
from worker.engines.stop_tokens import Stops, special_tokens, split_stops
from worker.engines.vllm_log import ErrorLog
from worker.engines.vllm_terms import native_params, piece_of, request_error, words
from worker.settings import EngineSettings

log = logging.getLogger(__name__)
KEPT_PARAMS = 256
CLOSE_S = 1.0  # nothing in the engine is worth waiting for; left alone it takes up to 8 s
# Settings whose values vLLM checks itself, some late and without their name.
CHECKED_LATE = (
    "dtype",
    "vllm_quantization",
    "vllm_load_format",
    "vllm_kv_cache_dtype",
    "kv_cache_dtype",
)
AUTO_LENGTH = -1  # vLLM: the model's own length, or what the memory for keys and values allows


def engine_arguments(settings: EngineSettings, model_dir: Path, device: Device) -> dict[str, Any]:
    """Every argument that is given; what is None is left to vLLM and not here."""
    max_seqs, max_tokens = device.default_batch
    max_seqs = settings.vllm_max_num_seqs or max_seqs
    eager = settings.vllm_enforce_eager
    arguments = {
        "model": str(model_dir),
        "tensor_parallel_size": settings.tensor_parallel_size,
        "trust_remote_code": settings.trust_remote_code,
        "dtype": settings.dtype or device.default_dtype,
        "gpu_memory_utilization": settings.gpu_memory_utilization,
        "kv_cache_memory_bytes": settings.kv_cache_bytes
        or (CPU_KV_CACHE_BYTES if device.is_cpu else None),
        "max_model_len": settings.max_model_len or AUTO_LENGTH,
        "max_num_seqs": max_seqs,
        # A step must have room for one token of every request.
        "max_num_batched_tokens": max(settings.vllm_max_num_batched_tokens or max_tokens, max_seqs),
        # Compiling takes a minute and a C compiler on a CPU, and gains a fifth.
        "enforce_eager": device.is_cpu if eager is None else eager,
        "enable_prefix_caching": settings.enable_prefix_caching,
        "quantization": settings.vllm_quantization,
        "load_format": settings.vllm_load_format,
        "kv_cache_dtype": settings.kv_dtype,
        # The engine's own metrics are passed on, and the stall watch lives on its steps.
        "disable_log_stats": False,
    }
    return {name: value for name, value in arguments.items() if value is not None}


class VllmAsyncEngine:
    name = "vllm_async"
    capabilities = Capabilities(
        fields=frozenset(SamplingParams.__struct_fields__) - {"echo"},
        can_abort=True,
        can_stream=True,
    )

    def __init__(self, settings: EngineSettings, model_dir: Path) -> None:
        self._settings = settings
        self._model_dir = model_dir
        self._engine: Any = None
        self._arguments: dict[str, Any] = {}
        self._dropped: list[str] = []
        self._special: dict[str, int] = {}
        self._params: dict[tuple[SamplingParams, bool], tuple[Any, Stops]] = {}
        self._waiting: set[str] = set()
        self._aborted: set[str] = set()
        self._children = Children()
        self._errors = ErrorLog()
        self._steps = 0

    async def start(self) -> None:
        """Takes a minute on a CPU, in a thread: the loop stays free for signals."""
        try:
            await asyncio.to_thread(self._load)
            await self._engine.get_supported_tasks()  # kept by vLLM: no request waits for it later
        except ModuleNotFoundError as error:
            raise EngineError(
                f"vLLM cannot be loaded here ({error}); where it has no build, as on macOS, "
                "ENGINE=transformers serves"
            ) from error
        except Exception as error:
            cause = self._errors.cause() or words(error)
            await self.close()
            raise EngineError(f"vLLM did not start: {cause}{self._hint(cause)}") from error
        self._errors.forget()
        self._children.look()  # the core's own children are nobody's once it has died
        self._special = special_tokens(self._engine.renderer.tokenizer)

    def _hint(self, cause: str) -> str:
        """Which settings hold a value that the error speaks of."""
        values = {name: getattr(self._settings, name) for name in CHECKED_LATE}
        named = [
            f"{name.upper()}={value}"
            for name, value in values.items()
            if value is not None and re.search(rf"\b{re.escape(value)}\b", cause)
        ]
        return f" (check {', '.join(named)})" if named else ""

    def _load(self) -> None:
        from vllm.engine.arg_utils import AsyncEngineArgs
        from vllm.platforms import current_platform
        from vllm.v1.engine.async_llm import AsyncLLM

        if current_platform.is_cpu():
            device = cpu_device()
        else:
            device = Device("cuda", current_platform.get_device_total_memory())
        self._arguments = self._known(
            engine_arguments(self._settings, self._model_dir, device), AsyncEngineArgs
        )
        self._children.look()
        # Kept here and not returned: the thread would hold it, and it is to go when it is closed.
        self._engine = AsyncLLM.from_engine_args(
            AsyncEngineArgs(**self._arguments, logging_config=self._errors.config()),
            stat_loggers=[self._step_counter()],
        )

    def _known(self, arguments: dict[str, Any], kind: type) -> dict[str, Any]:
        """What this vLLM has; an argument of another release is left out and told."""
        names = inspect.signature(kind).parameters
        self._dropped = sorted(arguments.keys() - names.keys())
        for name in self._dropped:
            log.warning("this vLLM has no argument %s; it is left out", name)
        return {name: value for name, value in arguments.items() if name in names}

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
        return min(int(self._arguments["max_num_seqs"]), self._settings.batch_concurrency)

    @property
    def progress(self) -> int:
        return self._steps

    @property
    def failure(self) -> EngineDead | None:
        """vLLM watches its processes in a thread of its own and raises only on the next call."""
        engine = self._engine
        return self._dead(engine.dead_error) if engine is not None and engine.errored else None

    def _dead(self, error: BaseException) -> EngineDead:
        return EngineDead(f"vLLM's engine died: {self._errors.cause() or words(error)}")

    async def generate(
        self, prompts: Sequence[EnginePrompt], params: SamplingParams, *, stream: bool
    ) -> AsyncIterator[EngineOutput]:
        try:
            native, stops = self._native(params, stream)
        except (
            Exception
        ) as error:  # vLLM's own checks of the parameters: the whole bucket shares them
            for prompt in prompts:
                yield EngineOutput(prompt.request_id, error=request_error(error))
            return
        pieces: asyncio.Queue[EngineOutput | EngineDead] = asyncio.Queue()
        self._waiting.update(prompt.request_id for prompt in prompts)
        tasks = [
            asyncio.create_task(self._run(prompt, native, stops, pieces)) for prompt in prompts
        ]
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
            pieces.put_nowait(self._dead(error))
        except Exception as error:
            pieces.put_nowait(EngineOutput(rid, error=request_error(error)))

    def _native(self, params: SamplingParams, stream: bool) -> tuple[Any, Stops]:
        """vLLM's own parameter object, one for a whole bucket."""
        key = (params, stream)
        if key not in self._params:
            if len(self._params) >= KEPT_PARAMS:
                self._params.clear()
            stops = split_stops(params.stop, params.stop_token_ids, self._special)
            self._params[key] = native_params(params, stops, stream), stops
        return self._params[key]

    async def abort(self, request_ids: Sequence[str]) -> None:
        # Handed to us but not yet to vLLM, which would ignore the id.
        self._aborted.update(rid for rid in request_ids if rid in self._waiting)
        if self._engine is not None and not self._engine.errored:
            await self._engine.abort(list(request_ids))

    def effective_args(self) -> dict[str, Any]:
        found = dict(self._arguments)
        if self._engine is not None:
            found["max_model_len"] = self.max_model_len
        return {**found, "dropped_arguments": self._dropped} if self._dropped else found

    async def close(self) -> None:
        """No process of the engine outlives this, hung or not."""
        engine, self._engine = self._engine, None
        self._children.look()
        if engine is not None:
            try:
                await asyncio.to_thread(engine.shutdown, CLOSE_S)
            except Exception:
                log.exception("vLLM did not shut down in order")
            del engine
        await asyncio.to_thread(self._children.end)
        self._errors.close()
