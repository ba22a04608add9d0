"""The steps that mend a start, given the words that vLLM 0.32 really says."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker.repairs import (
    REPAIRS,
    Machine,
    difference,
    estimated_max_len,
    next_repair,
)

METAX = Machine(has_metax=True)
OTHER = Machine()

KV_CACHE = (
    "To serve at least one request with the model's max seq len (131072), (14.00 GiB KV cache is "
    "needed, which is larger than the available KV cache memory (9.10 GiB). Based on the available "
    "memory, the estimated maximum model length is 85184. Try increasing `gpu_memory_utilization` "
    "(which also controls CPU memory on the CPU backend) or decreasing `max_model_len` when "
    "initializing the engine."
)
DERIVED = (
    "1 validation error for ModelConfig Value error, User-specified max_model_len (100000) is greater "
    "than the derived max_model_len (max_position_embeddings=8192 or model_max_length=None in model's "
    "config.json). To allow overriding this maximum, set the env var VLLM_ALLOW_LONG_MAX_MODEL_LEN=1."
)
CORE = "Engine core initialization failed. See root cause above. Failed core proc(s): {}"
NOTHING_FITS = "KV cache: the estimated maximum model length is 0."
LOAD_FORMAT = "ValueError: Load format `awq` is not supported"
COMPILATION = (
    "compilation_config: Input should be a dictionary or an instance of CompilationConfig, "
    "got '{\"mode\": 0}'"
)
NO_MEMORY = "No available memory for the cache blocks. Try increasing `gpu_memory_utilization`"
DTYPE = "Bfloat16 is only supported on GPUs with compute capability of at least 8.0"


# What was given, what vLLM said, on which machine: the step that is taken, and what it makes of the arguments.
TABLE: list[tuple[dict[str, Any], str, Machine, tuple[str, dict[str, Any]] | None]] = [
    ({}, KV_CACHE, OTHER, ("max_model_len", {"max_model_len": 85184})),
    ({"max_model_len": -1}, KV_CACHE, OTHER, ("max_model_len", {"max_model_len": 85184})),
    ({"max_model_len": 131072}, KV_CACHE, OTHER, ("max_model_len", {"max_model_len": 85184})),
    ({"max_model_len": 4096}, KV_CACHE, OTHER, None),
    ({"max_model_len": 100000}, DERIVED, OTHER, ("max_model_len", {"max_model_len": 8192})),
    ({}, CORE, OTHER, ("max_model_len", {"max_model_len": 38400})),
    ({"max_model_len": 1024}, CORE, OTHER, None),
    ({}, CORE, Machine(model_len=8192), ("max_model_len", {"max_model_len": 8192})),
    ({"max_model_len": -1}, NOTHING_FITS, OTHER, None),
    ({"max_model_len": "8k"}, KV_CACHE, OTHER, ("max_model_len", {"max_model_len": 85184})),
    (
        {},
        CORE,
        Machine(safe_max_model_len=2048),
        ("max_model_len", {"max_model_len": 2048}),
    ),
    ({"load_format": "awq"}, LOAD_FORMAT, OTHER, ("load_format", {})),
    ({"load_format": "pt"}, LOAD_FORMAT, OTHER, None),
    (
        {"compilation_config": '{"mode": 0}'},
        COMPILATION,
        OTHER,
        ("compilation_config", {"compilation_config": {"mode": 0}}),
    ),
    ({"dtype": "bfloat16"}, DTYPE, OTHER, None),
    ({}, NO_MEMORY, OTHER, None),
    ({}, "CUDA out of memory", OTHER, None),
    ({}, "graph capture failed", METAX, ("enforce_eager", {"enforce_eager": True})),
    ({"enforce_eager": True}, "graph capture failed", METAX, None),
    (
        {"enforce_eager": True, "max_model_len": 38400},
        "the estimated maximum model length is 5000",
        METAX,
        ("max_model_len", {"enforce_eager": True, "max_model_len": 5000}),
    ),
]


@pytest.mark.parametrize(("arguments", "said", "machine", "wanted"), TABLE)
def test_the_step_for_a_failure(
    arguments: dict[str, Any],
    said: str,
    machine: Machine,
    wanted: tuple[str, dict[str, Any]] | None,
) -> None:
    assert next_repair(arguments, RuntimeError(said), machine, frozenset()) == wanted


def test_the_estimate_is_found_beneath_the_error_that_wraps_it() -> None:
    error = RuntimeError(CORE)
    error.__cause__ = ValueError(KV_CACHE)
    assert estimated_max_len(error) == 85184


def test_thousands_may_have_commas() -> None:
    said = "the estimated maximum model length is 15,360, try that"
    assert estimated_max_len(ValueError(said)) == 15360


def test_the_words_beneath_an_error_with_a_cause_of_its_own_start_no_repair() -> None:
    """vLLM's generic failure lies under every one of them."""
    error = RuntimeError("vLLM did not start: RuntimeError: CUDA out of memory")
    error.__cause__ = RuntimeError(CORE)
    assert next_repair({}, error, OTHER, frozenset()) is None


def test_a_step_is_taken_once_for_an_engine() -> None:
    error = RuntimeError(KV_CACHE)
    assert next_repair({}, error, OTHER, frozenset({"max_model_len"})) is None


@given(
    length=st.one_of(st.none(), st.just(-1), st.integers(1, 10**6)),
    estimate=st.integers(0, 10**6),
    safe=st.integers(1, 10**6),
    words=st.sampled_from(["the estimated maximum model length is {}", CORE, "KV cache: {}"]),
)
def test_no_step_makes_a_length_longer(
    length: int | None, estimate: int, safe: int, words: str
) -> None:
    arguments = {} if length is None else {"max_model_len": length}
    error = RuntimeError(words.format(estimate))
    found = next_repair(arguments, error, Machine(safe_max_model_len=safe), frozenset())
    if found is not None:
        now = found[1]["max_model_len"]
        assert now >= 1
        assert length is None or length == -1 or now < length


def test_every_step_answers_other_arguments_or_nothing() -> None:
    error = RuntimeError("nothing that anybody knows")
    assert all(step({"load_format": "x"}, error, OTHER) is None for step in REPAIRS.values())


def test_a_change_is_told_in_words() -> None:
    before = {"load_format": "awq", "max_model_len": 9}
    assert difference(before, {"max_model_len": 5}) == (
        "load_format left out, was 'awq'; max_model_len now 5, was 9"
    )
    assert difference({}, {"enforce_eager": True}) == "enforce_eager now True"
