"""The choice of an engine, and the start: the arguments of every try and what the ladder made of the failures."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from tests.vectors.comparison import Difference, Differences, Meaning, exact, prose, stated
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
FIELDS = ("started", "backend", "engine_kind", "offline", "attempts", "error", "error_type")
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
# A value that says no more than leaving it out does, on either side. The length is the model's, or what fits.
SAYS_NOTHING = {"max_model_len": AUTO_LENGTH, "enforce_eager": False}
# What leaving it out means differs: the recordings leave out what was the default of their time, and vLLM's
# default is another one today.
THEIR_DEFAULT, ITS_DEFAULT = {"enable_prefix_caching": False}, {"enable_prefix_caching": True}


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
    tries: list[Try] = []

    async def construct(kind: str, arguments: Mapping[str, Any]) -> str:
        if kind == TRANSFORMERS:
            return kind
        tries.append(Try(kind, _as_seed(arguments, settings)))
        failure = next(failures, None)
        if failure is not None:
            raise RuntimeError(failure)
        return kind

    kinds = engines_to_try(settings, ABLE)
    arguments = engine_arguments(settings, Path("model"), GPU, has_metax=has_metax)
    machine = Machine(has_metax, settings.safe_max_model_len)
    kind, error = None, None
    try:
        kind = (await climb(kinds, arguments, construct, machine, [])).kind
    except SetupFailed as failed:
        error = str(failed)
    start = Start(kind, error, tuple(tries), len(given["constructor_errors"]))
    if isinstance(vector.wanted, str):
        return prose(vector.wanted, start, MEANINGS)
    return _compare(vector.wanted, start)


class Try(NamedTuple):
    """Of an engine of vLLM, with the arguments that the seed sets too."""

    kind: str
    arguments: dict[str, Any]


class Start(NamedTuple):
    """`kind` of what started, `error` of a start that failed. The outcome of the first `n_given` tries was told."""

    kind: str | None
    error: str | None
    tries: tuple[Try, ...]
    n_given: int

    @property
    def has_vllm(self) -> bool:
        return self.kind in KINDS.values()


def _as_seed(arguments: Mapping[str, Any], settings: EngineSettings) -> dict[str, Any]:
    named = SEED_ARGUMENTS | {name for name, own in SIZES.items() if getattr(settings, own)}
    told = {name: value for name, value in arguments.items() if name in named}
    return _plain({**ITS_DEFAULT, **told})


def _compare(wanted: Any, start: Start) -> Differences:
    """Field by field, as far as they are told."""
    wrong = stated(wanted, FIELDS)
    for field in () if wrong else wanted:
        value = wanted[field]
        match field:
            case "started" if value == FALLS_THROUGH:
                wrong += exact(TRANSFORMERS, start.kind, field)
            case "started":
                wrong += exact(value, start.has_vllm, field)
            case "backend":
                wrong += exact(value, "vllm" if start.has_vllm else start.kind, field)
            case "engine_kind":
                wrong += exact(KINDS.get(value, value), start.kind, field)
            case "offline":
                wrong += exact(value, start.kind == OFFLINE, field)
            case "attempts":
                told = [_plain({**THEIR_DEFAULT, **each}) for each in value]
                wrong += exact(told, [each.arguments for each in start.tries], field)
            case "error":
                if not (start.error and value in start.error):
                    wrong.append(Difference(field, value, start.error))
            case "error_type":
                wrong += exact(True, start.error is not None and value in FAILURES, field)
    return wrong


def _plain(arguments: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: value
        for name, value in arguments.items()
        if not (name in SAYS_NOTHING and value == SAYS_NOTHING[name])
    }


def _climbs(words: re.Match[str], start: Start) -> Differences:
    """The kind that failed first was tried again with an argument repaired, while failures were still told."""
    first = start.tries[0] if start.tries else None
    told = start.tries[: start.n_given]
    is_repaired = any(
        each.kind == first.kind and each.arguments != first.arguments for each in told if first
    )
    wrong = exact(True, start.has_vllm, "started")
    return (
        wrong
        if is_repaired
        else [*wrong, Difference("attempts", "a repair for the kind that failed", told)]
    )


def _keeps_chunked_prefill(words: re.Match[str], start: Start) -> Differences:
    wrong = exact(True, start.has_vllm, "started")
    for at, (_, arguments) in enumerate(start.tries):
        wrong += exact(True, arguments.get("enable_chunked_prefill", True), f"attempts[{at}]")
        if "speculative_config" not in arguments:
            wrong.append(Difference(f"attempts[{at}]", "speculation", arguments))
    return wrong


def _has_no_key(words: re.Match[str], start: Start) -> Differences:
    key = words["key"]
    if not start.tries:
        return [Difference("attempts", f"some without {key}", [])]
    return [
        Difference(f"attempts[{at}]", f"no {key}", arguments)
        for at, (_, arguments) in enumerate(start.tries)
        if key in arguments or key in (arguments.get("speculative_config") or {})
    ]


MEANINGS: dict[str, Meaning] = {
    "the same ladder applies to every engine kind": _climbs,
    "speculation keeps chunked prefill on": _keeps_chunked_prefill,
    r"no `?(?P<key>\w+)`? key": _has_no_key,
}
