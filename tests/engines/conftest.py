"""Started engines, each once for all tests of a module."""

from __future__ import annotations

import gc
import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from tests.e2e.places import model_folder
from tests.engines.bench_rig import Rig, processes_below, still_running
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
# One engine has to be mended before it starts.
OWN: dict[str, dict[str, Any]] = {"vllm_offline": {"vllm_load_format": "awq"}}


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return model_folder(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="session")
def tokenizer(model: Path) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(str(model))


@pytest.fixture
def restored() -> Iterator[None]:
    """The environment as it was; and what vLLM leaves lying about is swept while its warnings are ignored."""
    before = dict(os.environ)
    yield
    os.environ.clear()
    os.environ.update(before)
    gc.collect()


@pytest_asyncio.fixture(
    scope="module",
    loop_scope="module",
    params=[
        "simulated",
        pytest.param("transformers", marks=pytest.mark.engine),
        pytest.param("vllm_async", marks=pytest.mark.engine),
        pytest.param("vllm_offline", marks=pytest.mark.engine),
    ],
)
async def rig(request: pytest.FixtureRequest) -> AsyncIterator[Rig]:
    name: str = request.param
    folder: Path | None = None if name == "simulated" else request.getfixturevalue("model")
    before = dict(os.environ)
    others = processes_below()
    settings = EngineSettings.load(engine=name, **SETTINGS, **OWN.get(name, {}))
    started = await start(settings, folder)
    processes = frozenset(processes_below() - others)
    try:
        yield Rig(started.engine, started.prompts, started.report, processes)
    finally:
        await started.engine.close()
        assert still_running(processes) == []
        os.environ.clear()
        os.environ.update(before)
        gc.collect()  # what vLLM leaves lying about, while its warnings are ignored
