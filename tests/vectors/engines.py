"""The choice of an engine, and the start: the arguments of every try and what the ladder made of the failures."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.vectors.comparison import Difference, Differences, Meaning, exact, prose
from tests.vectors.surroundings import Surroundings
from tests.vectors.vector import Vector
from worker.engine_choice import OFFLINE, TRANSFORMERS, Facts, engines_to_try, wants_vllm
from worker.engines.devices import GIB, Device
from worker.engines.vllm_args import engine_arguments
from worker.ladder import SetupFailed, climb
from worker.repairs import AUTO_LENGTH, Machine
from worker.settings import EngineSettings

ABLE = Facts(has_vllm=True, has_compiler=True, has_gpu=True)
GPU = Device("cuda", 80 * GIB)
# The seed's words for an engine and ours: it knew two generations of vLLM's asynchronous engine, of which
# one is left.
KINDS = {"async_v0": "vllm_async", "async_v1": "vllm_async", "llm": "vllm_offline"}
# What the seed's start raises; ours ends with one line that holds all reasons.
FAILURES = ("RuntimeError", "ValueError")
FALLS_THROUGH = "falls through to the transformers backend"
# What the seed sets. Everything else that our tries have is ours alone: the model, its parallel parts, the
# memory for keys and values in bytes, whose code is trusted, whether figures are kept.
SEED_ARGUMENTS = frozenset(
    {
        *("max_model_len", "enforce_eager", "compilation_config", "enable_chunked_prefill"),
        *("enable_prefix_caching", "gpu_memory_utilization", "dtype", "kv_cache_dtype"),
        *("load_format", "quantization", "speculative_config"),
    }
)
# Set by the seed where the operator did, and always by us, since vLLM's own defaults are for other servers.
SIZES = {
    "max_num_seqs": "vllm_max_num_seqs",
    "max_num_batched_tokens": "vllm_max_num_batched_tokens",
}
# A value that says no more than leaving it out does. The length is the model's, or what fits.
SAYS_NOTHING = {
    "max_model_len": AUTO_LENGTH,
    "enforce_eager": False,
    "enable_prefix_caching": False,
}


def should_use_vllm(vector: Vector, around: Surroundings) -> Differences:
    given = vector.input
    facts = Facts(
        has_vllm=given["vllm_importable"],
        has_compiler=given["c_compiler"],
        has_gpu=given["cuda_available"],
    )
    return exact(vector.wanted, wants_vllm(EngineSettings.load(), facts))


async def engine_start(vector: Vector, around: Surroundings) -> Differences:
    """From the settings as the seed's start finds them: what MetaX takes of the memory was settled before it."""
    settings, given = EngineSettings.load(), vector.input
    has_metax = bool(given["metax_device"])
    failures = iter(given["constructor_errors"])
    attempts: list[dict[str, Any]] = []

    async def construct(kind: str, arguments: Mapping[str, Any]) -> str:
        if kind == TRANSFORMERS:
            return kind
        attempts.append(_as_seed(arguments, settings))
        failure = next(failures, None)
        if failure is not None:
            raise RuntimeError(failure)
        return kind

    kinds = engines_to_try(settings, ABLE)
    arguments = engine_arguments(settings, Path("model"), GPU, has_metax=has_metax)
    machine = Machine(has_metax, settings.safe_max_model_len)
    try:
        kind, error = (await climb(kinds, arguments, construct, machine, [])).kind, None
    except SetupFailed as failed:
        kind, error = None, str(failed)
    return _compare(vector.wanted, kind, error, attempts)


def _as_seed(arguments: Mapping[str, Any], settings: EngineSettings) -> dict[str, Any]:
    named = SEED_ARGUMENTS | {name for name, own in SIZES.items() if getattr(settings, own)}
    return _plain({name: value for name, value in arguments.items() if name in named})


def _compare(
    wanted: Any, kind: str | None, error: str | None, attempts: Sequence[dict[str, Any]]
) -> Differences:
    """Field by field, as far as they are told."""
    found = {"kind": kind, "error": error, "attempts": list(attempts)}
    if isinstance(wanted, str):
        return prose(wanted, found, MEANINGS)
    wrong: Differences = []
    for field, value in wanted.items():
        match field:
            case "started" if value == FALLS_THROUGH:
                wrong += exact(TRANSFORMERS, kind, field)
            case "started":
                wrong += exact(value, kind is not None and kind != TRANSFORMERS, field)
            case "backend":
                wrong += exact(value, "vllm" if kind in KINDS.values() else kind, field)
            case "engine_kind":
                wrong += exact(KINDS.get(value, value), kind, field)
            case "offline":
                wrong += exact(value, kind == OFFLINE, field)
            case "attempts":
                wrong += exact([_plain(each) for each in value], found["attempts"], field)
            case "error":
                if not (error and value in error):
                    wrong.append(Difference(field, value, error))
            case "error_type" if value in FAILURES:
                wrong += exact(True, error is not None, field)
            case _:
                wrong.append(Difference(field, value, "a field that this runner does not know"))
    return wrong


def _plain(arguments: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: value
        for name, value in arguments.items()
        if not (name in SAYS_NOTHING and value == SAYS_NOTHING[name])
    }


def _starts(words: re.Match[str], found: dict[str, Any]) -> Differences:
    """It got through the failures that were given, by repairs and by going on to the next engine."""
    return exact(True, found["kind"] in KINDS.values(), "started")


def _keeps_chunked_prefill(words: re.Match[str], found: dict[str, Any]) -> Differences:
    wrong = _starts(words, found)
    for at, attempt in enumerate(found["attempts"]):
        wrong += exact(True, attempt.get("enable_chunked_prefill", True), f"attempts[{at}]")
        if "speculative_config" not in attempt:
            wrong.append(Difference(f"attempts[{at}]", "speculation", attempt))
    return wrong


def _has_no_key(words: re.Match[str], found: dict[str, Any]) -> Differences:
    return [
        Difference(f"attempts[{at}]", f"no {words['key']}", attempt)
        for at, attempt in enumerate(found["attempts"])
        if words["key"] in attempt or words["key"] in (attempt.get("speculative_config") or {})
    ]


MEANINGS: dict[str, Meaning] = {
    "the same ladder applies to every engine kind": _starts,
    "speculation keeps chunked prefill on": _keeps_chunked_prefill,
    r"no `?(?P<key>\w+)`? key": _has_no_key,
}
