"""From settings to vLLM's arguments. Needs no engine, but for the names that it knows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from shared.errors import SettingsError
from worker.engines.devices import GIB, Device
from worker.engines.vllm_args import check_given, engine_arguments, shown
from worker.settings import EngineSettings

FOLDER = Path("some-model")
CPU = Device("cpu")
GPU = Device("cuda", 24 * GIB)


def test_sizes_and_memory_are_named_and_never_left_to_who_starts_it() -> None:
    for device in (CPU, GPU):
        arguments = engine_arguments(EngineSettings.load(), FOLDER, device)
        assert arguments["max_num_seqs"] >= 128
        assert arguments["max_num_batched_tokens"] >= arguments["max_num_seqs"]
    assert engine_arguments(EngineSettings.load(), FOLDER, CPU)["kv_cache_memory_bytes"] == GIB
    assert "kv_cache_memory_bytes" not in engine_arguments(EngineSettings.load(), FOLDER, GPU)


def test_a_step_has_room_for_every_request() -> None:
    settings = EngineSettings.load(vllm_max_num_seqs=512, vllm_max_num_batched_tokens=64)
    assert engine_arguments(settings, FOLDER, CPU)["max_num_batched_tokens"] == 512


@pytest.mark.parametrize(
    ("device", "dtype", "eager"),
    [
        (CPU, "bfloat16", True),
        (Device("cpu", computes_bfloat16=False), "float32", True),
        (GPU, "float16", False),
    ],
)
def test_defaults_follow_the_device(device: Device, dtype: str, eager: bool) -> None:
    arguments = engine_arguments(EngineSettings.load(), FOLDER, device)
    assert (arguments["dtype"], arguments.get("enforce_eager", False)) == (dtype, eager)
    asked = EngineSettings.load(dtype="bfloat16", vllm_enforce_eager=not eager)
    arguments = engine_arguments(asked, FOLDER, device)
    assert (arguments["dtype"], arguments["enforce_eager"]) == ("bfloat16", not eager)


def test_settings_reach_their_arguments() -> None:
    settings = EngineSettings.load(
        max_model_len=512,
        gpu_memory_utilization=0.5,
        tensor_parallel_size=2,
        vllm_quantization="fp8",
        vllm_load_format="dummy",
        kv_cache_dtype="fp8",
        enable_prefix_caching=False,
        kv_cache_gib=0.5,
    )
    arguments = engine_arguments(settings, FOLDER, GPU)
    assert arguments["model"] == str(FOLDER)
    assert arguments["max_model_len"] == 512
    assert arguments["gpu_memory_utilization"] == 0.5
    assert arguments["tensor_parallel_size"] == 2
    assert arguments["quantization"] == "fp8"
    assert arguments["load_format"] == "dummy"
    assert arguments["kv_cache_dtype"] == "fp8"
    assert arguments["enable_prefix_caching"] is False
    assert arguments["kv_cache_memory_bytes"] == GIB // 2
    assert arguments["trust_remote_code"] is False
    assert arguments["disable_log_stats"] is False


def test_arguments_of_the_operator_stand_over_the_settings() -> None:
    settings = EngineSettings.load(
        vllm_max_num_seqs=8, engine_args={"max_num_seqs": 4, "seed": 7, "dtype": None}
    )
    arguments = engine_arguments(settings, FOLDER, GPU)
    assert (arguments["max_num_seqs"], arguments["seed"]) == (4, 7)
    assert "dtype" not in arguments


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"max_num_seq": 4},
            "ENGINE_ARGS: vLLM has no argument 'max_num_seq'; is max_num_seqs meant?",
        ),
        ({"zzz": 1}, "ENGINE_ARGS: vLLM has no argument 'zzz'$"),
        ({"model": "x"}, "ENGINE_ARGS: model is set by MODEL_DIR or MODEL_ID"),
        ({"tensor_parallel_size": 2}, "is set by TENSOR_PARALLEL_SIZE"),
        ({"data_parallel_size": 2}, "more copies of a model are more workers"),
        ({"max_num_seqs": None}, "ENGINE_ARGS: max_num_seqs must be a number"),
    ],
)
def test_what_cannot_be_given_is_refused_by_name(given: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        check_given(given, {"model", "max_num_seqs", "seed"})


def test_speculation_leaves_the_rest_as_it_is() -> None:
    settings = EngineSettings.load(enable_speculative_decoding=True, spec_method="ngram")
    arguments = engine_arguments(settings, FOLDER, GPU)
    assert arguments["speculative_config"]["method"] == "ngram"
    assert "enable_chunked_prefill" not in arguments


def test_metax_devices_have_defaults_of_their_own() -> None:
    arguments = engine_arguments(EngineSettings.load(), FOLDER, GPU, has_metax=True)
    assert arguments["max_model_len"] == 38_400
    assert arguments["enable_chunked_prefill"] is False
    assert "compilation_config" not in arguments


def test_a_step_has_room_for_what_the_operator_asks_for() -> None:
    settings = EngineSettings.load(engine_args={"max_num_seqs": 4096})
    assert engine_arguments(settings, FOLDER, GPU)["max_num_batched_tokens"] == 4096
    both = EngineSettings.load(engine_args={"max_num_seqs": 4096, "max_num_batched_tokens": 64})
    assert engine_arguments(both, FOLDER, GPU)["max_num_batched_tokens"] == 64


def test_where_prompts_are_not_read_in_parts_a_step_has_room_for_a_whole_one() -> None:
    """vLLM refuses it otherwise."""
    arguments = engine_arguments(EngineSettings.load(), FOLDER, GPU, has_metax=True)
    assert arguments["max_num_batched_tokens"] == arguments["max_model_len"] == 38_400
    in_parts = EngineSettings.load(enable_chunked_prefill=True)
    arguments = engine_arguments(in_parts, FOLDER, GPU, has_metax=True)
    assert arguments["max_num_batched_tokens"] == 2048


def test_arguments_that_may_hold_keys_are_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    given = {"model_loader_extra_config": {"aws_secret": "S3CR3T"}, "seed": 7}
    assert shown(given) == {"model_loader_extra_config": "(set)", "seed": 7}
    assert "S3CR3T" not in repr(EngineSettings.load(engine_args=given))
    monkeypatch.setenv("ENGINE_ARGS", '{"aws_secret": "S3CR3T"')
    with pytest.raises(SettingsError, match="ENGINE_ARGS") as caught:
        EngineSettings.load()
    assert "S3CR3T" not in str(caught.value)


def test_arguments_nested_without_end_are_one_clear_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENGINE_ARGS", '{"a":' * 100_000)
    with pytest.raises(SettingsError, match=r"ENGINE_ARGS: .*must be a JSON object"):
        EngineSettings.load()
