"""The engines there are, by the name that ENGINE takes. Each loads its library when it is made, not before."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from shared.errors import EngineError
from worker.engines.base import Engine
from worker.settings import EngineSettings

# Settings, the model's folder (None: this engine needs none) and vLLM's keyword arguments, which are vLLM's
# engines' alone, make an engine that is not yet started.
Arguments = dict[str, Any]
Factory = Callable[[EngineSettings, Path | None, Arguments], Engine]


def _vllm_async(settings: EngineSettings, model_dir: Path | None, arguments: Arguments) -> Engine:
    from worker.engines.vllm_async import VllmAsyncEngine

    _needed(model_dir)
    return VllmAsyncEngine(settings, arguments)


def _vllm_offline(settings: EngineSettings, model_dir: Path | None, arguments: Arguments) -> Engine:
    from worker.engines.vllm_offline import VllmOfflineEngine

    _needed(model_dir)
    return VllmOfflineEngine(settings, arguments)


def _transformers(settings: EngineSettings, model_dir: Path | None, arguments: Arguments) -> Engine:
    from worker.engines.hf_transformers import TransformersEngine

    return TransformersEngine(settings, _needed(model_dir))


def _simulated(settings: EngineSettings, model_dir: Path | None, arguments: Arguments) -> Engine:
    from worker.engines.simulated import SimulatedEngine

    return SimulatedEngine(settings)


def _needed(model_dir: Path | None) -> Path:
    if model_dir is None:
        raise EngineError("this engine needs a model")
    return model_dir


ENGINES: dict[str, Factory] = {
    "vllm_async": _vllm_async,
    "vllm_offline": _vllm_offline,
    "transformers": _transformers,
    "simulated": _simulated,
}


def make(
    name: str, settings: EngineSettings, model_dir: Path | None, arguments: Arguments
) -> Engine:
    """Raises EngineError where there is no such engine."""
    if name not in ENGINES:
        raise EngineError(f"no engine is called {name!r}; there are {', '.join(ENGINES)}")
    return ENGINES[name](settings, model_dir, arguments)
