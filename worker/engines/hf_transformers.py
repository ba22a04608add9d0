"""transformers in padded micro-batches: the engine where vLLM cannot run. One call at a time, in a thread.

A call has one set of parameters, which a bucket's shared ones give it; stop strings are cut by the
project's own matcher, so that both engines stop alike.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from shared.errors import EngineError
from shared.request import FinishReason
from shared.sampling import SamplingParams
from shared.stops import StopMatcher
from worker.engines.base import Capabilities, EngineOutput, EnginePrompt
from worker.engines.devices import torch_device
from worker.settings import EngineSettings

DTYPES = {
    "fp16": "float16",
    "bf16": "bfloat16",
    "fp32": "float32",
    "half": "float16",
    "float": "float32",
}
SLOTS = 16
FALLBACK_MODEL_LEN = 4096


class TransformersEngine:
    name = "transformers"
    capabilities = Capabilities(
        fields=frozenset(SamplingParams.__struct_fields__) - {"logprobs", "seed"},
        can_abort=True,
        can_stream=False,
        rows_share=frozenset(SamplingParams.__struct_fields__) - {"echo"},
    )

    def __init__(self, settings: EngineSettings, model_dir: Path) -> None:
        self._settings = settings
        self._model_dir = model_dir
        self._model: Any = None
        self._tokenizer: Any = None
        self._dtype = ""
        self._max_model_len = 0
        self._progress = 0
        self._aborted: set[str] = set()
        self._lock = threading.Lock()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="transformers")

    async def start(self) -> None:
        try:
            await asyncio.get_running_loop().run_in_executor(self._thread, self._load)
        except Exception as error:
            raise EngineError(
                f"transformers did not start: {type(error).__name__}: {error}"
            ) from error

    def _load(self) -> None:
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer

        device = torch_device()
        asked = self._settings.transformers_dtype or self._settings.dtype
        self._dtype = DTYPES.get(asked, asked) if asked else device.default_dtype
        options: dict[str, Any] = {} if device.is_cpu else {"device_map": "auto"}
        common = {"trust_remote_code": self._settings.trust_remote_code, "local_files_only": True}
        self._tokenizer = AutoTokenizer.from_pretrained(str(self._model_dir), **common)
        self._tokenizer.padding_side = "left"
        dtype = "auto" if self._dtype == "auto" else getattr(torch, self._dtype)
        model = AutoModelForCausalLM.from_pretrained(
            str(self._model_dir), dtype=dtype, low_cpu_mem_usage=True, **options, **common
        )
        self._model = model.eval()
        # The model's own sampling defaults would stand behind every field that a request leaves alone.
        eos = self._model.generation_config.eos_token_id
        self._model.generation_config = type(model.generation_config)(eos_token_id=eos)
        known = getattr(model.config, "max_position_embeddings", None) or FALLBACK_MODEL_LEN
        self._max_model_len = min(known, self._settings.max_model_len or known)

    @property
    def max_model_len(self) -> int:
        return self._max_model_len

    @property
    def slots(self) -> int:
        return self._settings.vllm_max_num_seqs or SLOTS

    @property
    def progress(self) -> int:
        return self._progress

    async def generate(
        self, prompts: Sequence[EnginePrompt], params: SamplingParams, *, stream: bool
    ) -> AsyncIterator[EngineOutput]:
        loop = asyncio.get_running_loop()
        outputs = await loop.run_in_executor(self._thread, self._run, list(prompts), params)
        for output in outputs:
            yield output

    def _run(self, prompts: list[EnginePrompt], params: SamplingParams) -> list[EngineOutput]:
        import torch

        tokenizer = self._tokenizer
        pad = (
            tokenizer.pad_token_id if tokenizer.pad_token_id is not None else tokenizer.eos_token_id
        )
        width = max(len(prompt.token_ids) for prompt in prompts)
        ids = torch.full((len(prompts), width), pad, dtype=torch.long)
        mask = torch.zeros((len(prompts), width), dtype=torch.long)
        for row, prompt in enumerate(prompts):
            ids[row, width - len(prompt.token_ids) :] = torch.tensor(prompt.token_ids)
            mask[row, width - len(prompt.token_ids) :] = 1
        room = self._max_model_len - width
        limit = max(1, min(params.max_tokens, room))
        device = self._model.device
        watch = _Watch(self, prompts, params, width)
        with torch.inference_mode():
            whole = self._model.generate(
                input_ids=ids.to(device),
                attention_mask=mask.to(device),
                pad_token_id=pad,
                stopping_criteria=[watch],
                logits_processor=[_output_penalties(params, width)]
                if _has_output_penalty(params)
                else [],
                **self._options(params, limit),
            )
        rows = whole[:, width:].tolist()
        with self._lock:
            gone = {prompt.request_id for prompt in prompts} & self._aborted
            self._aborted -= gone
        return [
            self._output(prompt, row, params, limit, prompt.request_id in gone)
            for prompt, row in zip(prompts, rows, strict=True)
        ]

    def _options(self, params: SamplingParams, limit: int) -> dict[str, Any]:
        stops = self._stop_ids(params)
        options: dict[str, Any] = {
            "max_new_tokens": limit,
            "min_new_tokens": min(params.min_tokens, limit),
            "do_sample": not params.is_greedy,
            "repetition_penalty": params.repetition_penalty,
            "eos_token_id": sorted(stops) or None,
        }
        if not params.is_greedy:
            # top_k 0 is off; left out, transformers would take 50.
            options |= {
                "temperature": params.temperature,
                "top_p": params.top_p,
                "top_k": max(0, params.top_k),
            }
        return options

    def _stop_ids(self, params: SamplingParams) -> set[int]:
        ids = set(params.stop_token_ids)
        if not params.ignore_eos:
            eos = self._model.generation_config.eos_token_id
            ids |= {eos} if isinstance(eos, int) else set(eos or ())
            if isinstance(self._tokenizer.eos_token_id, int):
                ids.add(self._tokenizer.eos_token_id)
        special = set(self._tokenizer.all_special_tokens)
        for text in params.stop:
            if text in special:
                ids.add(self._tokenizer.convert_tokens_to_ids(text))
        return ids

    def _output(
        self,
        prompt: EnginePrompt,
        row: list[int],
        params: SamplingParams,
        limit: int,
        is_aborted: bool,
    ) -> EngineOutput:
        ends = self._stop_ids(params)
        at = next(
            (i for i, token in enumerate(row) if token in ends and i + 1 > params.min_tokens), None
        )
        kept = row[:at] if at is not None else row[:limit]
        text = self._tokenizer.decode(kept, skip_special_tokens=params.skip_special_tokens)
        matcher = StopMatcher(params.stop)
        fed = matcher.feed(text, n_tokens=len(kept))
        used = tuple(row[: at + 1]) if at is not None else tuple(kept)
        if fed.stop is not None:
            return EngineOutput(prompt.request_id, fed.text, used, FinishReason.stop, fed.stop)
        text = fed.text + matcher.flush()
        if at is not None:
            stop = row[at] if row[at] in params.stop_token_ids else None
            return EngineOutput(prompt.request_id, text, used, FinishReason.stop, stop)
        reason = FinishReason.abort if is_aborted else FinishReason.length
        return EngineOutput(prompt.request_id, text, used, reason)

    async def abort(self, request_ids: Sequence[str]) -> None:
        with self._lock:
            self._aborted |= set(request_ids)

    def is_aborted(self, request_id: str) -> bool:
        with self._lock:
            return request_id in self._aborted

    def tail(self, ids: Sequence[int]) -> str:
        return str(self._tokenizer.decode(ids, skip_special_tokens=False))

    def step(self) -> None:
        self._progress += 1

    def effective_args(self) -> dict[str, Any]:
        return {"dtype": self._dtype, "max_model_len": self._max_model_len, "slots": self.slots}

    async def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)
        self._model = None


class _Watch:
    """Called after each step: counts progress, and ends rows that were aborted or hit a stop string."""

    def __init__(
        self,
        engine: TransformersEngine,
        prompts: Sequence[EnginePrompt],
        params: SamplingParams,
        width: int,
    ) -> None:
        self._engine = engine
        self._prompts = prompts
        self._width = width
        self._params = params
        # Enough tokens to hold the longest stop string at one character each.
        self._window = max((len(text) for text in params.stop), default=0) + 4

    def __call__(self, input_ids: Any, scores: Any, **kwargs: Any) -> Any:
        import torch

        self._engine.step()
        done = []
        for row, prompt in enumerate(self._prompts):
            new = input_ids[row, self._width :]
            is_over = self._engine.is_aborted(prompt.request_id)
            if self._params.stop and not is_over and len(new) > self._params.min_tokens:
                text = self._engine.tail(new[-self._window :].tolist())
                is_over = any(stop in text for stop in self._params.stop)
            done.append(is_over)
        return torch.tensor(done, dtype=torch.bool, device=input_ids.device)


def _has_output_penalty(params: SamplingParams) -> bool:
    return bool(params.frequency_penalty or params.presence_penalty)


def _output_penalties(params: SamplingParams, width: int) -> Any:
    """Frequency and presence penalties over the output alone, as vLLM counts them."""

    def process(input_ids: Any, scores: Any) -> Any:
        import torch

        new = input_ids[:, width:]
        counts = torch.zeros_like(scores)
        counts.scatter_add_(1, new, torch.ones_like(new, dtype=scores.dtype))
        penalty = params.frequency_penalty * counts + params.presence_penalty * (counts > 0)
        return scores - penalty

    return process
