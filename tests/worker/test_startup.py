"""Which engine starts, with which environment, and what is told when none does."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from shared.errors import SettingsError
from worker.settings import EngineSettings
from worker.startup import (
    Facts,
    SetupFailed,
    engine_environment,
    engines_to_try,
    start,
    wants_vllm,
    write_environment,
)

VECTORS = json.loads(
    (Path(__file__).parents[1] / "vectors" / "data" / "backend_choice_open.json").read_text("utf-8")
)["vectors"]
ABLE = Facts(has_vllm=True, has_compiler=True, has_gpu=True)
NO_VLLM = Facts(has_vllm=False, has_compiler=True, has_gpu=False)


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Without settings from outside, and as it was afterwards."""
    monkeypatch.chdir(tmp_path)
    before = dict(os.environ)
    for name in [name for name in before if name.lower() in EngineSettings.model_fields]:
        monkeypatch.delenv(name)
    yield
    os.environ.clear()
    os.environ.update(before)


@pytest.mark.parametrize("vector", VECTORS, ids=[v["name"] for v in VECTORS])
def test_recorded_choice(vector: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in vector["env"].items():
        monkeypatch.setenv(name, value)
    given = vector["input"]
    facts = Facts(
        has_vllm=given["vllm_importable"],
        has_compiler=given["c_compiler"],
        has_gpu=given["cuda_available"],
    )
    wanted = vector.get("right_output", vector["output"])
    assert wants_vllm(EngineSettings.load(), facts) is wanted


@pytest.mark.parametrize(
    ("given", "facts", "wanted"),
    [
        ({}, ABLE, ["vllm_async", "transformers"]),
        ({"force_vllm": True}, ABLE, ["vllm_async"]),
        ({"use_vllm": False}, ABLE, ["transformers"]),
        ({"use_vllm": False, "force_vllm": True}, ABLE, ["transformers"]),
        ({}, NO_VLLM, ["transformers"]),
        ({"engine": "vllm_async"}, NO_VLLM, ["vllm_async"]),
        ({"engine": "transformers", "force_vllm": True}, ABLE, ["transformers"]),
        ({"engine": "simulated"}, NO_VLLM, ["simulated"]),
    ],
)
def test_the_order_of_engines(given: dict[str, Any], facts: Facts, wanted: list[str]) -> None:
    assert engines_to_try(EngineSettings.load(**given), facts) == wanted


def test_forced_vllm_that_is_not_there_stops_the_start() -> None:
    with pytest.raises(SettingsError, match="FORCE_VLLM: vLLM is not installed"):
        engines_to_try(EngineSettings.load(force_vllm=True), NO_VLLM)


def test_nothing_is_reported_from_an_engine() -> None:
    changes = engine_environment(EngineSettings.load(), {})
    assert changes["VLLM_NO_USAGE_STATS"] == changes["DO_NOT_TRACK"] == "1"
    assert changes["VLLM_LOGGING_LEVEL"] == "WARNING"


def test_plugins_are_off_unless_named_or_on_a_metax_device() -> None:
    settings = EngineSettings.load()
    assert engine_environment(settings, {})["VLLM_PLUGINS"] == ""
    assert "VLLM_PLUGINS" not in engine_environment(settings, {"VLLM_PLUGINS": "mine"})
    assert "VLLM_PLUGINS" not in engine_environment(settings, {}, has_metax=True)


def test_a_blank_list_of_devices_is_taken_away_and_told(caplog: pytest.LogCaptureFixture) -> None:
    given = {"CUDA_VISIBLE_DEVICES": " ", "NVIDIA_VISIBLE_DEVICES": "0"}
    changes = engine_environment(EngineSettings.load(), given)
    assert changes["CUDA_VISIBLE_DEVICES"] is None
    assert "NVIDIA_VISIBLE_DEVICES" not in changes
    assert "CUDA_VISIBLE_DEVICES" in caplog.text


def test_the_faster_openmp_is_preloaded_once(tmp_path: Path) -> None:
    settings, openmp = EngineSettings.load(), tmp_path / "libiomp5.so"
    assert engine_environment(settings, {}, openmp=openmp)["LD_PRELOAD"] == str(openmp)
    beside = engine_environment(settings, {"LD_PRELOAD": "/x/libother.so"}, openmp=openmp)
    assert beside["LD_PRELOAD"] == f"{openmp}:/x/libother.so"
    for there in ("/y/libiomp5.so", "/y/libgomp.so.1"):
        assert "LD_PRELOAD" not in engine_environment(
            settings, {"LD_PRELOAD": there}, openmp=openmp
        )


def test_the_users_own_threading_stands() -> None:
    given = {"LD_PRELOAD": "/y/libiomp5.so", "KMP_BLOCKTIME": "200", "OMP_WAIT_POLICY": "active"}
    changes = engine_environment(EngineSettings.load(vllm_cpu_omp_threads_bind="0-3"), given)
    assert not {"KMP_BLOCKTIME", "GOMP_SPINCOUNT", "LD_PRELOAD"} & changes.keys()
    assert changes["VLLM_CPU_OMP_THREADS_BIND"] == "0-3"


def test_the_environment_is_written_and_taken_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLUICE_TEST_GONE", "1")
    write_environment({"SLUICE_TEST_SET": "2", "SLUICE_TEST_GONE": None})
    assert os.environ["SLUICE_TEST_SET"] == "2"
    assert "SLUICE_TEST_GONE" not in os.environ


async def test_a_started_engine_comes_with_its_prompts_and_report() -> None:
    started = await start(EngineSettings.load(engine="simulated"), None)
    assert started.engine.name == "simulated"
    assert [(step.name, step.error) for step in started.report] == [
        ("simulated", None),
        ("tokenizer", None),
    ]
    assert os.environ["HF_HUB_OFFLINE"] == "1"


async def test_an_engine_that_was_named_and_fails_is_the_end_with_its_reason(
    tmp_path: Path,
) -> None:
    with pytest.raises(SetupFailed, match="transformers did not start") as caught:
        await start(EngineSettings.load(engine="transformers"), tmp_path)
    assert "\n" not in str(caught.value)
    [step] = caught.value.report
    assert step.name == "transformers"
    assert step.error is not None


async def test_an_engine_that_needs_a_model_says_so() -> None:
    with pytest.raises(SetupFailed, match="needs a model"):
        await start(EngineSettings.load(engine="transformers"), None)
