"""What is particular to vLLM: its arguments, a start that fails, and the death of its processes."""

from __future__ import annotations

import asyncio
import gc
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

import psutil
import pytest

from shared.sampling import SamplingParams
from tests.engines.bench_rig import Rig
from tests.engines.conftest import SETTINGS
from worker.engines.base import EngineDead, EngineError
from worker.engines.devices import GIB, Device
from worker.engines.vllm_async import VllmAsyncEngine, engine_arguments
from worker.settings import EngineSettings
from worker.startup import SetupFailed, start

FOLDER = Path("some-model")
CPU = Device("cpu")
GPU = Device("cuda", 24 * GIB)


@pytest.fixture
def restored() -> Iterator[None]:
    """The environment as it was; and what vLLM leaves lying about is swept while its warnings are ignored."""
    before = dict(os.environ)
    yield
    os.environ.clear()
    os.environ.update(before)
    gc.collect()


def processes_below() -> set[psutil.Process]:
    """But for Python's own tracker of shared memory, which ends with the test run."""
    return {
        process
        for process in psutil.Process().children(recursive=True)
        if process.is_running() and "resource_tracker" not in " ".join(process.cmdline())
    }


def core_of(ours: set[psutil.Process]) -> psutil.Process:
    return min(ours, key=lambda process: process.create_time())


def still_running(processes: Iterable[psutil.Process]) -> list[psutil.Process]:
    """Those that are no mere entry in the table, whoever is their parent by now."""
    return [
        process
        for process in processes
        if process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    ]


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
    assert (arguments["dtype"], arguments["enforce_eager"]) == (dtype, eager)
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


def test_the_worker_runs_no_more_at_once_than_it_may() -> None:
    engine = VllmAsyncEngine(EngineSettings.load(batch_concurrency=4), FOLDER)
    engine._arguments = engine_arguments(EngineSettings.load(), FOLDER, CPU)
    assert engine.slots == 4


def test_an_argument_that_this_vllm_lacks_is_left_out_and_told(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Older:
        """Stands for the arguments of another release."""

        def __init__(self, model: str, dtype: str = "auto") -> None: ...

    engine = VllmAsyncEngine(EngineSettings.load(), FOLDER)
    taken = engine._known({"model": "m", "max_num_seqs": 4}, Older)
    assert taken == {"model": "m"}
    assert "max_num_seqs" in caplog.text
    assert engine.effective_args()["dropped_arguments"] == ["max_num_seqs"]


@pytest.mark.engine
@pytest.mark.timeout(300)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.usefixtures("restored")
async def test_a_start_that_fails_tells_its_cause_and_leaves_no_process(model: Path) -> None:
    """The cause is known in a grandchild alone; what comes up to us only says that there is one."""
    before = processes_below()
    settings = EngineSettings.load(engine="vllm_async", vllm_load_format="awq")
    with pytest.raises(SetupFailed, match=r"Load format `awq`.*check VLLM_LOAD_FORMAT=awq"):
        await start(settings, model)
    assert processes_below() <= before


@pytest.mark.engine
@pytest.mark.timeout(300)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.usefixtures("restored")
async def test_the_death_of_its_process_fails_all_that_runs_and_leaves_no_process(
    model: Path,
) -> None:
    before = processes_below()
    started = await start(EngineSettings.load(engine="vllm_async", **SETTINGS), model)
    rig = Rig(started.engine, started.prompts)
    ours = processes_below() - before
    assert len(ours) >= 2, "an engine core and its worker"
    params = SamplingParams(max_tokens=200, min_tokens=0, temperature=0, ignore_eos=True)
    running = asyncio.create_task(rig.answers(["one", "two", "three"], params))
    before_steps = rig.engine.progress
    async with asyncio.timeout(60):
        while rig.engine.progress < before_steps + 3:
            await asyncio.sleep(0.01)
        core_of(ours).kill()
        with pytest.raises(EngineDead):
            await running
        with pytest.raises(EngineDead):
            await rig.answer("four", params)
    await rig.engine.close()
    assert still_running(ours) == []


@pytest.mark.engine
@pytest.mark.timeout(300)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.usefixtures("restored")
async def test_the_death_of_its_process_shows_while_nothing_runs_and_leaves_no_hung_worker(
    model: Path,
) -> None:
    """A worker that hangs does not see its core die, and is no child of ours from then on."""
    before = processes_below()
    started = await start(EngineSettings.load(engine="vllm_async", **SETTINGS), model)
    ours = processes_below() - before
    core = core_of(ours)
    workers = ours - {core}
    assert started.engine.failure is None
    try:
        for worker in workers:
            worker.suspend()
        core.kill()
        async with asyncio.timeout(10):
            while started.engine.failure is None:
                await asyncio.sleep(0.05)
        assert isinstance(started.engine.failure, EngineDead)
        assert set(still_running(ours)) == workers
        await started.engine.close()
        assert still_running(ours) == []
    finally:
        for worker in still_running(workers):
            worker.kill()


async def test_without_vllm_one_line_says_what_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on macOS, where there is no build."""
    engine = VllmAsyncEngine(EngineSettings.load(), FOLDER)

    def missing() -> None:
        raise ModuleNotFoundError("No module named 'vllm'")

    monkeypatch.setattr(engine, "_load", missing)
    with pytest.raises(EngineError, match="ENGINE=transformers serves"):
        await engine.start()
    await engine.close()
