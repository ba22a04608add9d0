"""The engines there are, by the name that ENGINE takes. Each loads its library when it is made, not before."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from shared.errors import EngineError
from worker.engines.base import Engine
from worker.settings import EngineSettings

# Settings and the model's folder (None: this engine needs none) make an engine that is not yet started.
Factory = Callable[[EngineSettings, Path | None], Engine]


def _vllm_async(settings: EngineSettings, model_dir: Path | None) -> Engine:
    from worker.engines.vllm_async import VllmAsyncEngine

    return VllmAsyncEngine(settings, _needed(model_dir))


def _transformers(settings: EngineSettings, model_dir: Path | None) -> Engine:
    from worker.engines.hf_transformers import TransformersEngine

    return TransformersEngine(settings, _needed(model_dir))


def _simulated(settings: EngineSettings, model_dir: Path | None) -> Engine:
    from worker.engines.simulated import SimulatedEngine

    return SimulatedEngine(settings)


def _needed(model_dir: Path | None) -> Path:
    if model_dir is None:
        raise EngineError("this engine needs a model")
    return model_dir


ENGINES: dict[str, Factory] = {
    "vllm_async": _vllm_async,
    "transformers": _transformers,
    "simulated": _simulated,
}


def make(name: str, settings: EngineSettings, model_dir: Path | None) -> Engine:
    """Raises EngineError where there is no such engine."""
    if name not in ENGINES:
        raise EngineError(f"no engine is called {name!r}; there are {', '.join(ENGINES)}")
    return ENGINES[name](settings, model_dir)
