"""What the libraries of an engine are to see in the environment, and that no more of it is changed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from worker.environment import METAX_MEMORY_SHARE, engine_environment, for_device, write_environment
from worker.settings import EngineSettings

pytestmark = pytest.mark.usefixtures("environment")


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


def test_no_hub_is_forced_on_the_engine() -> None:
    changes = engine_environment(EngineSettings.load(), {"VLLM_USE_MODELSCOPE": "True"})
    assert changes["VLLM_USE_MODELSCOPE"] is None
    assert "VLLM_USE_MODELSCOPE" not in engine_environment(EngineSettings.load(), {})


def test_a_metax_device_gives_less_memory_unless_told(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = EngineSettings.load()
    assert for_device(settings, has_metax=False).gpu_memory_utilization == 0.85
    assert for_device(settings, has_metax=True).gpu_memory_utilization == METAX_MEMORY_SHARE
    monkeypatch.setenv("GPU_MEMORY_UTILIZATION", "0.9")
    assert for_device(EngineSettings.load(), has_metax=True).gpu_memory_utilization == 0.9
