"""The worker's settings: the first seed's forgiving words, and ours that stop the start."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from shared.errors import SettingsError
from worker.settings import EngineSettings, WorkerSettings


@pytest.fixture(autouse=True)
def _no_settings_from_outside(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    known = {name.upper() for name in WorkerSettings.model_fields}
    for name in [name for name in os.environ if name.upper() in known]:
        monkeypatch.delenv(name)


@pytest.mark.parametrize(
    ("word", "meant"),
    [
        ("true", True),
        (" True ", True),
        ("1", True),
        ("on", True),
        ("0", False),
        (" false", False),
        ("no", False),
        ("AUTO", None),
        ("", True),
        ("perhaps", True),
    ],
)
def test_use_vllm_knows_three_ways_and_takes_other_words_for_none(
    word: str, meant: bool | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("USE_VLLM", word)
    assert EngineSettings.load().use_vllm is meant


@pytest.mark.parametrize(
    ("name", "bad", "taken"),
    [
        ("MAX_MODEL_LEN", "long", None),
        ("MAX_MODEL_LEN", "0", None),
        ("VLLM_MAX_NUM_SEQS", "many", None),
        ("GPU_MEMORY_UTILIZATION", "97%", 0.85),
        ("GPU_MEMORY_UTILIZATION", "1.5", 0.85),
        ("BATCH_CONCURRENCY", "x", 320),
        ("BATCH_CONCURRENCY", "0", 1),
        ("DTYPE", "float17", None),
        ("TRANSFORMERS_DTYPE", "int8", None),
        ("VLLM_LOG_LEVEL", "loud", "WARNING"),
    ],
)
def test_a_bad_value_of_a_seed_variable_takes_the_default(
    name: str, bad: str, taken: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, bad)
    assert getattr(EngineSettings.load(), name.lower()) == taken


@pytest.mark.parametrize(
    ("name", "bad"),
    [
        ("ENGINE", "vllm"),
        ("KV_CACHE_GIB", "-1"),
        ("TENSOR_PARALLEL_SIZE", "0"),
        ("STALL_LIMIT_S", "soon"),
        ("WORKER_ID", "two words"),
        ("SIM_TOKEN_S", "nan"),
        ("WORKER_PORT", "70000"),
    ],
)
def test_a_bad_value_of_ours_stops_the_start_by_name(
    name: str, bad: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, bad)
    with pytest.raises(SettingsError, match=rf"{name}: .*environment"):
        WorkerSettings.load()


@pytest.mark.parametrize(
    ("batch", "fast", "wanted"),
    [("", "", False), ("1", "", True), ("1", "0", False), ("0", "yes", True)],
)
def test_the_fast_template_follows_batch_mode_while_unset(
    batch: str, fast: str, wanted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BATCH_MODE", batch)
    monkeypatch.setenv("FAST_CHAT_TEMPLATE", fast)
    assert EngineSettings.load().wants_fast_template is wanted


def test_the_engines_own_name_of_the_key_value_type_goes_first() -> None:
    both = EngineSettings.load(kv_cache_dtype="fp8_e5m2", vllm_kv_cache_dtype="FP8_E4M3 ")
    assert both.kv_dtype == "fp8_e4m3"
    assert EngineSettings.load(kv_cache_dtype="fp8_e5m2").kv_dtype == "fp8_e5m2"


def test_memory_for_keys_and_values_has_one_meaning_under_two_names() -> None:
    assert EngineSettings.load().kv_cache_bytes is None
    assert EngineSettings.load(vllm_cpu_kvcache_space=2).kv_cache_bytes == 2 * 2**30
    assert EngineSettings.load(vllm_cpu_kvcache_space=2, kv_cache_gib=0.5).kv_cache_bytes == 2**29


def test_blank_means_absent(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ENGINE", "MODEL_DIR", "DTYPE", "WARMUP_PROMPT", "STALL_LIMIT_S", "WORKER_ID"):
        monkeypatch.setenv(name, "")
    settings = WorkerSettings.load()
    assert settings == WorkerSettings.load()
    assert (settings.engine, settings.model_dir, settings.dtype) == (None, None, None)
    assert (settings.warmup_prompt, settings.stall_limit_s) == ("你好", 60.0)


def test_dot_env_is_read(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("ENGINE=simulated\nSIM_SLOTS=3\n")
    settings = WorkerSettings.load()
    assert (settings.engine, settings.sim_slots) == ("simulated", 3)


def test_every_truthy_word_of_the_seed_holds_for_its_flags(monkeypatch: pytest.MonkeyPatch) -> None:
    for word in ("1", "true", "YES", " y", "On"):
        monkeypatch.setenv("FORCE_VLLM", word)
        assert EngineSettings.load().force_vllm
    for word in ("0", "no", "2", "enabled"):
        monkeypatch.setenv("FORCE_VLLM", word)
        assert not EngineSettings.load().force_vllm
