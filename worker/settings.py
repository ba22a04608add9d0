"""What the worker reads from the environment and `.env`. Variables of the first seed keep their
names and are forgiving; a default that depends on the device is None here and chosen by the engine.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from shared.settings import TRUTHY, LogSettings, QueueSettings, Settings, seed

FALSY = frozenset({"0", "false", "no", "n", "off"})
SEVERAL = 65_536
MOST_SAMPLES = 8_192
DTYPE_NAMES = {"fp16": "float16", "bf16": "bfloat16", "fp32": "float32"}
DRAFT, NGRAM = "draft_model", "ngram"
# Ways of speculation that ask a smaller model of its own; the others need no folder.
WITH_DRAFT = frozenset({DRAFT, "eagle", "eagle3", "medusa", "mlp_speculator", "dflash", "dspark"})
# Variables of the first seed whose purpose is gone, and why. They are taken, and said once at the start.
OBSOLETE = {
    "SERVE_VLLM_ENGINE": "vLLM has one engine; ENGINE chooses among all that there are",
    "VLLM_USE_V1": "vLLM has one engine",
    "VLLM_DEVICE": "vLLM finds its device itself",
    "VLLM_TOKENIZER_POOL_SIZE": "vLLM has no tokenizer pool any more",
    "VLLM_TOKENIZER_POOL_TYPE": "vLLM has no tokenizer pool any more",
    "SPEC_DISABLE_BY_BATCH_SIZE": "vLLM has no such switch any more",
    "TRANSFORMERS_NO_TORCHVISION": "nothing reads it; torchvision is not installed",
    "VLLM_USE_MODELSCOPE": "models are fetched before the engine starts; MODEL_HUB says where from",
    "SKIP_PIP_INSTALL": "`make` installs only what has changed",
    "DEBUG_NET": "nothing ever read it",
}


def _lower(value: Any) -> Any:
    return value.strip().lower() if isinstance(value, str) else value


def _upper(value: Any) -> Any:
    return value.strip().upper() if isinstance(value, str) else value


def _flag(value: Any) -> Any:
    """The first seed's truthy words; every other word is no."""
    return _lower(value) in TRUTHY if isinstance(value, str) else value


def _dtype(value: Any) -> Any:
    """Short names stand for the long ones, which alone vLLM knows."""
    word = _lower(value)
    return DTYPE_NAMES.get(word, word) if isinstance(word, str) else word


def _method(value: Any) -> Any:
    """Of speculation. `draft` is what the first seed's own instructions call it."""
    word = _lower(value)
    return DRAFT if word == "draft" else word


def _object(value: Any) -> Any:
    """A JSON object."""
    if not isinstance(value, str):
        return value
    try:
        read = json.loads(value)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"must be a JSON object: {error}") from None
    if not isinstance(read, dict):
        raise ValueError('must be a JSON object such as {"max_num_seqs": 64}')
    return read


def _pair(value: Any) -> Any:
    """An opening and a closing tag, as a comma list."""
    if not isinstance(value, str):
        return value
    parts = tuple(part.strip() for part in value.split(","))
    if len(parts) != 2 or not all(parts) or parts[0].lower() == parts[1].lower():
        raise ValueError(
            "must be two different tags with a comma between, such as <think>,</think>"
        )
    return parts


def _file(value: Any) -> Any:
    """Blanks say that there is no file, where an absent value means the default."""
    return (value.strip() or None) if isinstance(value, str) else value


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
    Literal["auto", "half", "float16", "bfloat16", "float", "float32"], BeforeValidator(_dtype)
]
TransformersDtype = Annotated[Literal["float16", "bfloat16", "float32"], BeforeValidator(_dtype)]
LogLevel = Annotated[
    Literal["DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"], BeforeValidator(_upper)
]
EngineName = Literal["vllm_async", "vllm_offline", "transformers", "simulated"]


class ModelSettings(Settings):
    """Which model is served and where it comes from; see `worker/model.py` for the order."""

    model_id: str | None = None
    model_dir: Path | None = None
    model_hub: Literal["huggingface", "modelscope"] = "huggingface"
    model_revision: str | None = None
    modelscope_api_token: str | None = Field(None, repr=False)
    skip_model_download: bool = seed(False)
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
    default_max_model_len: Positive = seed(38_400)
    safe_max_model_len: Positive = seed(38_400)
    vllm_max_num_seqs: Positive | None = seed(None)
    vllm_max_num_batched_tokens: Positive | None = seed(None)
    vllm_enforce_eager: Flag | None = seed(None)
    enable_chunked_prefill: bool = seed(False)
    vllm_compilation_config: str | None = seed(None)
    vllm_quantization: str | None = seed(None)
    vllm_load_format: Word | None = seed(None)
    vllm_kv_cache_dtype: Word | None = seed(None)
    kv_cache_dtype: Word | None = seed(None)
    enable_prefix_caching: bool = seed(True)
    tensor_parallel_size: Positive = 1
    pipeline_parallel_size: Positive = 1
    trust_remote_code: bool = False
    engine_args: Annotated[dict[str, Any], BeforeValidator(_object)] = Field({}, repr=False)
    batch_mode: bool = seed(False)
    vllm_batch_use_llm: bool = seed(True)
    batch_concurrency: int = seed(320, clamp=(1, SEVERAL))

    enable_speculative_decoding: bool = seed(False)
    spec_method: Annotated[str, BeforeValidator(_method)] = seed(DRAFT)
    spec_num_speculative_tokens: int = seed(6, clamp=(1, 32))
    spec_ngram_lookup_max: int = seed(8, clamp=(1, SEVERAL))
    spec_ngram_lookup_min: int = seed(1, clamp=(1, SEVERAL))
    spec_draft_model_dir: Path | None = seed(None)
    spec_draft_model_id: str | None = seed(None)
    spec_draft_model_revision: str | None = seed(None)
    spec_draft_optional: bool = seed(True)
    spec_draft_max_model_len: int | None = seed(None)

    chat_template: str | None = None
    fast_chat_template: Flag | None = seed(None)
    think_tags: Annotated[tuple[str, str], BeforeValidator(_pair)] = ("<think>", "</think>")
    warmup_prompt: str = seed("你好")
    warmup_data_path: Annotated[str | None, BeforeValidator(_file)] = seed(
        "./data.jsonl", keeps_blanks=True
    )
    warmup_num_samples: int = seed(64, clamp=(0, MOST_SAMPLES))
    warmup_num_samples_cap: int = seed(512, clamp=(0, MOST_SAMPLES))
    warmup_repeat: int = seed(1, clamp=(1, 8))

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
    def warmup_samples(self) -> int:
        """WARMUP_NUM_SAMPLES within its cap."""
        return min(self.warmup_num_samples, self.warmup_num_samples_cap)

    @property
    def kv_dtype(self) -> str | None:
        """Two names for one thing; vLLM's own goes first."""
        return self.vllm_kv_cache_dtype or self.kv_cache_dtype

    @property
    def kv_cache_bytes(self) -> int | None:
        """Memory for keys and values if it is named. KV_CACHE_GIB stands over vLLM's own variable."""
        gib = self.kv_cache_gib or self.vllm_cpu_kvcache_space
        return int(gib * 2**30) if gib else None


class ObsoleteSettings(Settings):
    """What the first seed's users may still have set; see OBSOLETE."""

    serve_vllm_engine: str | None = seed(None)
    vllm_use_v1: str | None = seed(None)
    vllm_device: str | None = seed(None)
    vllm_tokenizer_pool_size: str | None = seed(None)
    vllm_tokenizer_pool_type: str | None = seed(None)
    spec_disable_by_batch_size: str | None = seed(None)
    transformers_no_torchvision: str | None = seed(None)
    vllm_use_modelscope: str | None = seed(None)
    skip_pip_install: str | None = seed(None)
    debug_net: str | None = seed(None)

    @property
    def told(self) -> list[str]:
        """One line for each that is set."""
        names = [name for name in type(self).model_fields if getattr(self, name) is not None]
        return [f"{name.upper()} has no effect: {OBSOLETE[name.upper()]}" for name in names]


class WorkerSettings(QueueSettings, LogSettings, EngineSettings):
    """One worker process. Times in seconds."""

    worker_id: Annotated[str, AfterValidator(_name)] | None = None
    worker_host: str = "127.0.0.1"
    worker_port: Annotated[int, Field(ge=0, le=65_535)] = 0
    served_model_name: str | None = None
    stall_limit_s: Annotated[float, Field(gt=0, le=3_600)] = 60.0
    drain_s: Annotated[float, Field(ge=0, le=3_600)] = 30.0
    claim_max: Annotated[int, Field(ge=1, le=1_024)] = 32


def inherited() -> dict[str, str]:
    """The environment as this process was given it; what the engine is to inherit is made from it."""
    return dict(os.environ)
