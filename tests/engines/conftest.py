"""Started engines, each once for all tests of a module."""

from __future__ import annotations

import gc
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.e2e.places import model_folder
from tests.engines.bench_rig import Rig
from worker.settings import EngineSettings
from worker.startup import start

# A short context, so that its end is quickly reached; pauses, so that a simulated run can be cut short.
SETTINGS = {
    "max_model_len": 256,
    "kv_cache_gib": 0.25,
    "dtype": "float32",
    "transformers_dtype": "float32",
    "sim_first_token_s": 0.001,
    "sim_token_s": 0.001,
}


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return model_folder(tmp_path_factory.mktemp("model"))


@pytest_asyncio.fixture(
    scope="module",
    loop_scope="module",
    params=[
        "simulated",
        pytest.param("transformers", marks=pytest.mark.engine),
        pytest.param("vllm_async", marks=pytest.mark.engine),
    ],
)
async def rig(request: pytest.FixtureRequest) -> AsyncIterator[Rig]:
    name: str = request.param
    folder: Path | None = None if name == "simulated" else request.getfixturevalue("model")
    before = dict(os.environ)
    started = await start(EngineSettings.load(engine=name, **SETTINGS), folder)
    try:
        yield Rig(started.engine, started.prompts)
    finally:
        await started.engine.close()
        os.environ.clear()
        os.environ.update(before)
        gc.collect()  # what vLLM leaves lying about, while its warnings are ignored
