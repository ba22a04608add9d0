"""transformers in padded micro-batches: the engine where vLLM cannot run. One call at a time, in a thread.

A call of `model.generate` has one set of parameters, which its rows share but for their limits. Each row ends
by itself: its answer goes out at once, though the call runs on for the others.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from shared.errors import EngineError, InvalidRequest
from shared.request import FinishReason
from shared.sampling import SamplingParams
from worker.engines.base import Capabilities, EngineDead, EngineOutput, EnginePrompt
from worker.engines.devices import torch_device
from worker.engines.hf_options import end_options, generation_options
from worker.engines.hf_rows import Emit, Row, RowWatch
from worker.engines.penalties import Penalties
from worker.engines.row_text import RowText, stop_table
from worker.engines.stop_tokens import StopRules, Stops
from worker.settings import EngineSettings

SLOTS = 16
FALLBACK_MODEL_LEN = 4096


class TransformersEngine:
    name = "transformers"
    capabilities = Capabilities(
        fields=frozenset(SamplingParams.__struct_fields__) - {"echo", "logprobs"},
        can_abort=True,
        can_stream=True,
        rows_share=frozenset(SamplingParams.__struct_fields__) - {"echo", "max_tokens"},
    )

    def __init__(self, settings: EngineSettings, model_dir: Path) -> None:
        self._settings = settings
        self._model_dir = model_dir
        self._model: Any = None
        self._tokenizer: Any = None
        self._rules = StopRules()
        self._eos: frozenset[int] = frozenset()
        self._dtype = ""
        self._max_model_len = 0
        self._progress = 0
        self._rows: dict[str, Row] = {}
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="transformers")

    async def start(self) -> None:
        try:
            await asyncio.get_running_loop().run_in_executor(self._thread, self._load)
        except Exception as error:
            text = f"transformers did not start: {type(error).__name__}: {error}"
            raise EngineError(text) from error

    def _load(self) -> None:
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

        device = torch_device()
        asked = self._settings.transformers_dtype or self._settings.dtype
        self._dtype = asked or device.default_dtype
        common = {"trust_remote_code": self._settings.trust_remote_code, "local_files_only": True}
        self._tokenizer = AutoTokenizer.from_pretrained(str(self._model_dir), **common)
        model = AutoModelForCausalLM.from_pretrained(
            str(self._model_dir),
            dtype="auto" if self._dtype == "auto" else getattr(torch, self._dtype),
            low_cpu_mem_usage=True,
            **({} if device.is_cpu else {"device_map": "auto"}),
            **common,
        )
        eos = model.generation_config.eos_token_id
        ends = {eos} if isinstance(eos, int) else set(eos or ())
        if isinstance(self._tokenizer.eos_token_id, int):
            ends.add(self._tokenizer.eos_token_id)
        self._eos = frozenset(ends)
        # The model's own sampling defaults would stand behind every field that a request leaves alone.
        model.generation_config = GenerationConfig()
        self._model = model.eval()
        self._rules = StopRules.of(self._tokenizer, self._n_ids)
        known = getattr(model.config, "max_position_embeddings", None) or FALLBACK_MODEL_LEN
        self._max_model_len = min(known, self._settings.max_model_len or known)

    @property
    def max_model_len(self) -> int:
        return self._max_model_len

    @property
    def slots(self) -> int:
        return min(self._settings.vllm_max_num_seqs or SLOTS, self._settings.batch_concurrency)

    @property
    def progress(self) -> int:
        return self._progress

    @property
    def failure(self) -> EngineDead | None:
        """It lives in this process, and a call that fails costs its own rows alone."""
        return None

    async def generate(
        self, prompts: Sequence[EnginePrompt], params: SamplingParams, *, stream: bool
    ) -> AsyncIterator[EngineOutput]:
        loop = asyncio.get_running_loop()
        pieces: asyncio.Queue[EngineOutput] = asyncio.Queue()
        stops = self._rules.stops(params)
        error = self._objection(stops)
        if error is not None:
            for prompt in prompts:
                yield EngineOutput(prompt.request_id, error=error)
            return
        rows = [self._row(prompt, params, stops) for prompt in prompts]
        self._rows.update({row.prompt.request_id: row for row in rows})

        def emit(piece: EngineOutput) -> None:
            loop.call_soon_threadsafe(pieces.put_nowait, piece)

        run = loop.run_in_executor(self._thread, self._run, rows, params, stops, stream, emit)
        left = len(rows)
        try:
            while left:
                piece = await pieces.get()
                left -= piece.is_last
                yield piece
        finally:
            for row in rows:
                row.is_aborted = True
                self._rows.pop(row.prompt.request_id, None)
            # The thread sees it at its next step; until then it needs this loop.
            await asyncio.shield(run)

    def _objection(self, stops: Stops) -> InvalidRequest | None:
        """An id that the model does not have would be an index out of range later."""
        beyond = [token_id for token_id in stops.ids if token_id >= self._n_ids]
        if not beyond:
            return None
        text = f"stop_token_ids: the model has {self._n_ids} tokens, got {beyond[0]}"
        return InvalidRequest(text, param="stop_token_ids")

    @property
    def _n_ids(self) -> int:
        return int(self._model.config.get_text_config().vocab_size)

    def _row(self, prompt: EnginePrompt, params: SamplingParams, stops: Stops) -> Row:
        def decode(ids: Sequence[int]) -> str:
            return str(
                self._tokenizer.decode(
                    ids,
                    skip_special_tokens=params.skip_special_tokens,
                    clean_up_tokenization_spaces=False,
                )
            )

        room = self._max_model_len - len(prompt.token_ids)
        limit = max(1, min(prompt.own(params).max_tokens, room))
        return Row(prompt, RowText(decode, stop_table(stops.strings), params.min_tokens), limit)

    def _run(
        self,
        rows: Sequence[Row],
        params: SamplingParams,
        stops: Stops,
        stream: bool,
        emit: Emit,
    ) -> None:
        """In the engine's thread. Every row has its last piece when this returns."""
        # A seed says what one request gets; in a batch it would depend on the rows before it.
        calls = [[row] for row in rows] if _seed(params) is not None else [list(rows)]
        for call in calls:
            for row in call:
                if row.is_aborted:
                    emit(row.piece(FinishReason.abort))
            live = [row for row in call if not row.is_over]
            if not live:
                continue
            try:
                self._call(live, params, stops, stream, emit)
            except Exception as error:
                text = f"transformers failed: {type(error).__name__}: {error}"
                for row in live:
                    if not row.is_over:
                        emit(EngineOutput(row.prompt.request_id, error=EngineError(text)))

    def _call(
        self, rows: list[Row], params: SamplingParams, stops: Stops, stream: bool, emit: Emit
    ) -> None:
        import torch

        eos = frozenset() if params.ignore_eos else self._eos
        end = end_options(stops, eos)
        ends = frozenset(end.get("eos_token_id", ()))
        # Padding is on the left, so that all rows go on at the same place. Each row is padded with a token of
        # its own prompt: the mask hides it from the model, but transformers' repetition penalty sees it.
        width = max(len(row.prompt.token_ids) for row in rows)
        padded, mask = torch.zeros((2, len(rows), width), dtype=torch.long)
        for at, row in enumerate(rows):
            start = width - len(row.prompt.token_ids)
            padded[at] = row.prompt.token_ids[0]
            padded[at, start:] = torch.tensor(row.prompt.token_ids)
            mask[at, start:] = 1
        limit = max(row.limit for row in rows)
        least = min(params.min_tokens, limit)
        options = generation_options(
            msgspec.structs.replace(params, max_tokens=limit, min_tokens=least)
        )
        if params.is_greedy:
            del options["top_k"]  # transformers would warn that it has no effect
        penalties = [Penalties(params, width)] if Penalties.are_asked(params) else []
        watch = RowWatch(self._step, rows, ends, params.min_tokens, stops, stream, emit)
        with torch.inference_mode(), _chance(_seed(params)):
            self._model.generate(
                input_ids=padded.to(self._model.device),
                attention_mask=mask.to(self._model.device),
                pad_token_id=max(self._eos, default=0),  # fills up rows that are over
                use_cache=True,
                stopping_criteria=[watch],
                logits_processor=penalties,
                **end,
                **options,
            )

    def _step(self) -> None:
        self._progress += 1

    async def abort(self, request_ids: Sequence[str]) -> None:
        for request_id in request_ids:
            if request_id in self._rows:
                self._rows[request_id].is_aborted = True

    def effective_args(self) -> dict[str, Any]:
        return {"dtype": self._dtype, "max_model_len": self._max_model_len, "slots": self.slots}

    async def close(self) -> None:
        for row in self._rows.values():
            row.is_aborted = True
        await asyncio.to_thread(self._thread.shutdown, wait=True, cancel_futures=True)
        self._model = None


def _seed(params: SamplingParams) -> int | None:
    """The seed where there is anything to draw."""
    return None if params.is_greedy else params.seed


@contextmanager
def _chance(seed: int | None) -> Iterator[None]:
    """What is drawn inside follows from the seed. torch has one state for all calls, so it is put back:
    the draws of whoever comes next are no business of this one's.
    """
    import torch

    if seed is None:
        yield
        return
    # Seeding reaches every GPU that torch sees.
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        torch.manual_seed(seed)
        yield
