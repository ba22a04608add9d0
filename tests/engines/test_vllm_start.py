"""Starts of vLLM that fail: in whose words, how soon, and that nothing is left of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from shared.errors import EngineError
from tests.engines.bench_rig import processes_below
from worker.engines.devices import cpu_device
from worker.engines.vllm_args import engine_arguments
from worker.engines.vllm_offline import VllmOfflineEngine
from worker.engines.vllm_start import Launch
from worker.environment import engine_environment, write_environment
from worker.settings import EngineSettings, inherited

pytestmark = pytest.mark.filterwarnings("ignore")  # vLLM warns while it is imported
KIB = 1024


@pytest.fixture
def vllm() -> Any:
    return pytest.importorskip("vllm")


def launch(**settings: Any) -> Launch:
    return Launch(EngineSettings.load(**settings), {})


def test_a_setting_whose_value_the_error_speaks_of_is_named() -> None:
    error = ValueError("`blocks` of float32 are not for fp8_e5m2 here")
    refused = launch(dtype="float32", kv_cache_dtype="fp8_e5m2").refused(error)
    assert str(refused).endswith("here (check DTYPE=float32, KV_CACHE_DTYPE=fp8_e5m2)")
    assert "check" not in str(launch(kv_cache_dtype="fp8").refused(error))


def test_without_vllm_one_line_says_what_serves() -> None:
    """As on macOS, where there is no build."""
    for name in ("vllm", "vllm._C"):
        error = ModuleNotFoundError(f"No module named '{name}'", name=name)
        assert "ENGINE=transformers serves" in str(launch().refused(error))


def test_another_module_that_is_missing_is_named_as_what_it_is() -> None:
    error = ModuleNotFoundError("No module named 'soundfile'", name="soundfile")
    refused = str(launch().refused(error))
    assert refused == "vLLM did not start: ModuleNotFoundError: No module named 'soundfile'"


@pytest.mark.usefixtures("vllm")
def test_a_load_format_that_vllm_lacks_is_refused_before_any_process_is_started(
    model: Path,
) -> None:
    before = processes_below()
    settings = EngineSettings.load(vllm_load_format="awq")
    started = Launch(settings, {"model": str(model), "load_format": "awq"})
    with pytest.raises(ValueError, match="Load format `awq` is not supported") as caught:
        started.prepare()
    assert "check VLLM_LOAD_FORMAT=awq" in str(started.refused(caught.value))
    assert processes_below() <= before


@pytest.mark.engine
@pytest.mark.timeout(300)
@pytest.mark.usefixtures("restored", "vllm")
async def test_a_start_that_fails_tells_its_cause_and_leaves_no_process(model: Path) -> None:
    """The cause is known in a process below alone; what comes up to us only says that there is one."""
    before = processes_below()
    settings = EngineSettings.load(dtype="float32", max_model_len=8192)
    write_environment(engine_environment(settings, inherited()))
    arguments = engine_arguments(settings, model, cpu_device())
    engine = VllmOfflineEngine(settings, {**arguments, "kv_cache_memory_bytes": 8192 * KIB})
    with pytest.raises(EngineError, match=r"vLLM did not start: .* KV cache"):
        await engine.start()
    assert processes_below() <= before
