"""What is particular to `AsyncLLM`; the rest is the contract's, and `vllm_start.py`'s."""

from __future__ import annotations

import asyncio
from pathlib import Path

import psutil
import pytest

from tests.engines.bench_rig import processes_below, still_running
from tests.engines.conftest import SETTINGS
from worker.engines.base import EngineDead
from worker.engines.devices import Device
from worker.engines.vllm_args import engine_arguments
from worker.engines.vllm_async import VllmAsyncEngine
from worker.settings import EngineSettings
from worker.startup import start

FOLDER = Path("some-model")
CPU = Device("cpu")


def core_of(ours: set[psutil.Process]) -> psutil.Process:
    return min(ours, key=lambda process: process.create_time())


def test_the_worker_runs_no_more_at_once_than_it_may() -> None:
    arguments = engine_arguments(EngineSettings.load(), FOLDER, CPU)
    engine = VllmAsyncEngine(EngineSettings.load(batch_concurrency=4), arguments)
    assert engine.slots == 4


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
