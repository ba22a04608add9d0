"""From settings to keyword arguments of vLLM's engine, and which of them this vLLM has. Starts nothing."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from shared.errors import SettingsError
from worker.engines.devices import CPU_KV_CACHE_BYTES, Device
from worker.repairs import AUTO_LENGTH
from worker.settings import EngineSettings
from worker.speculation import speculative_config

# What ENGINE_ARGS may not say, and where it is said instead.
ELSEWHERE = {
    "model": "MODEL_DIR or MODEL_ID",
    "tokenizer": "MODEL_DIR: it is read from the model's folder",
    "served_model_name": "SERVED_MODEL_NAME",
    "logging_config": "VLLM_LOG_LEVEL",
    "hf_token": "HF_TOKEN in the environment: arguments are shown in /workers",
    "disable_log_stats": "nothing: the stall watch needs the engine's figures",
    "skip_tokenizer_init": "nothing: stop strings need the tokenizer",
    "enable_log_requests": "nothing: prompts are never logged",
    # How many GPUs a worker gets is decided before there is one.
    "tensor_parallel_size": "TENSOR_PARALLEL_SIZE",
    "pipeline_parallel_size": "PIPELINE_PARALLEL_SIZE",
    "data_parallel_size": "WORKERS: more copies of a model are more workers",
}
# Arguments that may hold keys of a storage or of a network.
PRIVATE = ("model_loader_extra_config", "kv_transfer_config", "additional_config", "hf_overrides")


def engine_arguments(
    settings: EngineSettings, model_dir: Path, device: Device, *, has_metax: bool = False
) -> dict[str, Any]:
    """Every argument that is given, in the first seed's order; what is None is left to vLLM and not here.

    ENGINE_ARGS comes last and stands over all others.
    """
    max_seqs, max_tokens = device.default_batch
    eager = settings.vllm_enforce_eager
    arguments = {
        "model": str(model_dir),
        "tensor_parallel_size": settings.tensor_parallel_size,
        "pipeline_parallel_size": settings.pipeline_parallel_size,
        "trust_remote_code": settings.trust_remote_code,
        "dtype": settings.dtype or device.default_dtype,
        "gpu_memory_utilization": settings.gpu_memory_utilization,
        "kv_cache_memory_bytes": settings.kv_cache_bytes
        or (CPU_KV_CACHE_BYTES if device.is_cpu else None),
        # The engine's own metrics are passed on, and the stall watch lives on its steps.
        "disable_log_stats": False,
        "quantization": settings.vllm_quantization,
        "load_format": settings.vllm_load_format,
        "kv_cache_dtype": settings.kv_dtype,
        "enable_prefix_caching": settings.enable_prefix_caching,
        "max_num_seqs": settings.vllm_max_num_seqs or max_seqs,
        # Compiling takes a minute and a C compiler on a CPU, and gains a fifth.
        "enforce_eager": (device.is_cpu or None) if eager is None else eager,
        **(_metax(settings) if has_metax else {}),
        "max_model_len": _length(settings, has_metax=has_metax),
        "speculative_config": speculative_config(settings),
        **settings.engine_args,
    }
    if "max_num_batched_tokens" not in settings.engine_args:
        wanted = settings.vllm_max_num_batched_tokens or max_tokens
        arguments["max_num_batched_tokens"] = max(wanted, *_least_tokens(arguments))
    return {name: value for name, value in arguments.items() if value is not None}


def _least_tokens(arguments: Mapping[str, Any]) -> list[int]:
    """What a step must have room for: a token of every request, and a whole prompt where none is read in parts."""
    needs = ["max_num_seqs"]
    if arguments.get("enable_chunked_prefill") is False:
        needs.append("max_model_len")
    found = [arguments.get(name) for name in needs]
    # What is no number is for vLLM to refuse.
    return [value for value in found if type(value) is int] or [1]


def _metax(settings: EngineSettings) -> dict[str, Any]:
    """What the first seed sets on these devices alone."""
    return {
        "enable_chunked_prefill": settings.enable_chunked_prefill,
        "compilation_config": settings.vllm_compilation_config,
    }


def _length(settings: EngineSettings, *, has_metax: bool) -> int:
    if settings.max_model_len is not None:
        return settings.max_model_len
    return settings.default_max_model_len if has_metax else AUTO_LENGTH


def known_arguments(
    arguments: Mapping[str, Any], given: Mapping[str, Any]
) -> tuple[dict[str, Any], list[str]]:
    """What this vLLM has, and the names that are left out since it has them not. Imports vLLM.

    `given` is ENGINE_ARGS, where a name that vLLM does not have is a mistake: raises SettingsError.
    """
    from vllm.engine.arg_utils import AsyncEngineArgs

    names = inspect.signature(AsyncEngineArgs).parameters.keys()
    check_given(given, names)
    dropped = sorted(arguments.keys() - names)
    return {name: value for name, value in arguments.items() if name in names}, dropped


def shown(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """As logs and `/workers` may have them."""
    return {name: "(set)" if name in PRIVATE else value for name, value in arguments.items()}


def check_given(given: Mapping[str, Any], names: Any) -> None:
    """Raises SettingsError naming the first argument of ENGINE_ARGS that cannot be given."""
    for name in given:
        if name in ELSEWHERE:
            raise SettingsError(f"ENGINE_ARGS: {name} is set by {ELSEWHERE[name]}")
        if given[name] is None and name == "max_num_seqs":
            raise SettingsError("ENGINE_ARGS: max_num_seqs must be a number")
        if name not in names:
            near = difflib.get_close_matches(name, names, 1)
            hint = f"; is {near[0]} meant?" if near else ""
            raise SettingsError(f"ENGINE_ARGS: vLLM has no argument {name!r}{hint}")
