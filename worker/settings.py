"""What the worker reads from the environment and `.env`. Variables of the first seed keep their
names and are forgiving; a default that depends on the device is None here and chosen by the engine.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from shared.settings import TRUTHY, LogSettings, QueueSettings, Settings, seed

FALSY = frozenset({"0", "false", "no", "n", "off"})
SEVERAL = 65_536


def _lower(value: Any) -> Any:
    return value.strip().lower() if isinstance(value, str) else value


def _upper(value: Any) -> Any:
    return value.strip().upper() if isinstance(value, str) else value


def _flag(value: Any) -> Any:
    """The first seed's truthy words; every other word is no."""
    return _lower(value) in TRUTHY if isinstance(value, str) else value


def _three_ways(value: Any) -> Any:
    """Yes, no, or None for `auto`."""
    word = _lower(value)
    if not isinstance(word, str):
        return value
    if word in TRUTHY or word in FALSY:
        return word in TRUTHY
    if word == "auto":
        return None
    raise ValueError("must be true, false or auto")


def _name(value: str) -> str:
    if not (
        0 < len(value) <= 64 and all(c.isascii() and (c.isalnum() or c in "._-") for c in value)
    ):
        raise ValueError("must be 1..64 of letters, digits, '.', '_' and '-'")
    return value


Flag = Annotated[bool, BeforeValidator(_flag)]
ThreeWays = Annotated[bool | None, BeforeValidator(_three_ways)]
Word = Annotated[str, BeforeValidator(_lower)]
Positive = Annotated[int, Field(ge=1)]
Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Dtype = Annotated[
    Literal["auto", "half", "float16", "bfloat16", "float", "float32"], BeforeValidator(_lower)
]
TransformersDtype = Annotated[
    Literal["float16", "fp16", "bfloat16", "bf16", "float32", "fp32"], BeforeValidator(_lower)
]
LogLevel = Annotated[
    Literal["DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"], BeforeValidator(_upper)
]
EngineName = Literal["vllm_async", "transformers", "simulated"]


class ModelSettings(Settings):
    """Which model is served and where it comes from; see `worker/model.py` for the order."""

    model_id: str | None = None
    model_dir: Path | None = None
    model_hub: Literal["huggingface", "modelscope"] = "huggingface"
    model_revision: str | None = None
    data_dir: Path = Path("data")


class EngineSettings(ModelSettings):
    """Which engine runs and how. None: by device, model or engine, told in `/workers` once started."""

    engine: EngineName | None = None
    use_vllm: ThreeWays = seed(True)
    force_vllm: bool = seed(False)

    dtype: Dtype | None = seed(None)
    transformers_dtype: TransformersDtype | None = seed(None)
    gpu_memory_utilization: Annotated[float, Field(gt=0, le=1)] = seed(0.85)
    kv_cache_gib: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    max_model_len: Positive | None = seed(None)
    vllm_max_num_seqs: Positive | None = seed(None)
    vllm_max_num_batched_tokens: Positive | None = seed(None)
    vllm_enforce_eager: Flag | None = seed(None)
    vllm_quantization: str | None = seed(None)
    vllm_load_format: Word | None = seed(None)
    vllm_kv_cache_dtype: Word | None = seed(None)
    kv_cache_dtype: Word | None = seed(None)
    enable_prefix_caching: bool = seed(True)
    tensor_parallel_size: Positive = 1
    trust_remote_code: bool = False
    batch_mode: bool = seed(False)
    batch_concurrency: int = seed(320, clamp=(1, SEVERAL))

    fast_chat_template: Flag | None = seed(None)
    warmup_prompt: str = seed("你好")

    vllm_log_level: LogLevel = seed("WARNING")
    vllm_cpu_omp_threads_bind: str = "nobind"
    vllm_cpu_kvcache_space: Annotated[int, Field(ge=0)] | None = None

    sim_first_token_s: Seconds = 0.0
    sim_token_s: Seconds = 0.0
    sim_slots: Annotated[int, Field(ge=1, le=SEVERAL)] = 256

    @property
    def wants_fast_template(self) -> bool:
        """FAST_CHAT_TEMPLATE follows BATCH_MODE while unset."""
        return self.batch_mode if self.fast_chat_template is None else self.fast_chat_template

    @property
    def kv_dtype(self) -> str | None:
        """Two names for one thing; vLLM's own goes first."""
        return self.vllm_kv_cache_dtype or self.kv_cache_dtype

    @property
    def kv_cache_bytes(self) -> int | None:
        """Memory for keys and values if it is named. KV_CACHE_GIB stands over vLLM's own variable."""
        gib = self.kv_cache_gib or self.vllm_cpu_kvcache_space
        return int(gib * 2**30) if gib else None


class WorkerSettings(QueueSettings, LogSettings, EngineSettings):
    """One worker process. Times in seconds."""

    worker_id: Annotated[str, AfterValidator(_name)] | None = None
    worker_host: str = "127.0.0.1"
    worker_port: Annotated[int, Field(ge=0, le=65_535)] = 0
    served_model_name: str | None = None
    stall_limit_s: Annotated[float, Field(gt=0, le=3_600)] = 60.0
    drain_s: Annotated[float, Field(ge=0, le=3_600)] = 30.0
    claim_max: Annotated[int, Field(ge=1, le=1_024)] = 64


def inherited() -> dict[str, str]:
    """The environment as this process was given it; what the engine is to inherit is made from it."""
    return dict(os.environ)
