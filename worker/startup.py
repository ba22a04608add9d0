"""From settings to a started engine: which one, each try timed and told, and what the next one is.

Writes the environment that the engine's libraries are to see before any of them is imported.
"""

from __future__ import annotations

import asyncio
import importlib.util
import logging
import os
import shutil
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from shared.errors import EngineError, SettingsError
from shared.worker_info import StartStep
from worker.engines import make
from worker.engines.base import Engine
from worker.engines.devices import torch_device
from worker.engines.simulated import SimulatedTokenizer
from worker.generate import Prompts
from worker.prompt import Prompts as ModelPrompts
from worker.settings import EngineSettings, inherited

log = logging.getLogger(__name__)
METAX_DEVICES = "mxc*"
OFFLINE = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
BLANK_HIDES = ("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES")


class Facts(msgspec.Struct, frozen=True):
    """What this machine can do, as far as the choice of an engine depends on it."""

    has_vllm: bool
    has_compiler: bool
    """A C compiler is there, or none is needed: vLLM on a CPU runs without one in eager mode."""
    has_gpu: bool


@dataclass(frozen=True)
class Started:
    engine: Engine
    prompts: Prompts
    report: tuple[StartStep, ...]


class SetupFailed(EngineError):
    """No engine started. The message is one clear line; `report` holds every try."""

    def __init__(self, message: str, report: tuple[StartStep, ...]) -> None:
        super().__init__(message)
        self.report = report


def wants_vllm(settings: EngineSettings, facts: Facts) -> bool:
    """The first seed's decision, with FORCE_VLLM lifting the compiler's veto alone."""
    if not facts.has_vllm:
        return False
    if not facts.has_compiler and not settings.force_vllm:
        return False
    return facts.has_gpu if settings.use_vllm is None else settings.use_vllm


def engines_to_try(settings: EngineSettings, facts: Facts) -> list[str]:
    """In order. A named engine is the only one; so is vLLM where it is forced."""
    if settings.engine is not None:
        return [settings.engine]
    if settings.force_vllm and settings.use_vllm is not False and not facts.has_vllm:
        raise SettingsError("FORCE_VLLM: vLLM is not installed here")
    if not wants_vllm(settings, facts):
        return ["transformers"]
    return ["vllm_async"] if settings.force_vllm else ["vllm_async", "transformers"]


def engine_environment(
    settings: EngineSettings,
    given: Mapping[str, str],
    *,
    openmp: Path | None = None,
    has_metax: bool = False,
) -> dict[str, str | None]:
    """What to change in the environment (None: take away) for engines and their child processes.

    `openmp` is the faster OpenMP that vLLM's CPU build wants preloaded: measured three times as fast.
    """
    changes: dict[str, str | None] = {
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "VLLM_LOGGING_LEVEL": settings.vllm_log_level,
        "VLLM_CPU_OMP_THREADS_BIND": settings.vllm_cpu_omp_threads_bind,
        # Beats have a thread of their own here, and a fork copies locks that it may hold.
        "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
        "TOKENIZERS_PARALLELISM": "false",
    }
    if "VLLM_PLUGINS" not in given and not has_metax:
        changes["VLLM_PLUGINS"] = ""
    if "VLLM_CPU_KVCACHE_SPACE" in given:
        # It would stand over the argument; it was read as a setting.
        changes["VLLM_CPU_KVCACHE_SPACE"] = None
    preloaded = given.get("LD_PRELOAD", "")
    has_intel = "libiomp" in preloaded
    if openmp is not None and not any(lib in preloaded for lib in ("libiomp", "libomp", "libgomp")):
        changes["LD_PRELOAD"] = ":".join(filter(None, (str(openmp), preloaded)))
        has_intel = True
    # Waiting threads sleep soon: where cores are shared, spinning against the thread that is waited for
    # makes a step several times slower. Measured: GNU's runtime 5 to 7 times.
    if has_intel and "KMP_BLOCKTIME" not in given:
        changes["KMP_BLOCKTIME"] = "5"
    if "GOMP_SPINCOUNT" not in given and "OMP_WAIT_POLICY" not in given:
        changes["GOMP_SPINCOUNT"] = "0"
    for name in BLANK_HIDES:
        if name in given and not given[name].strip():
            # Some run times export it blank, which would hide every GPU.
            log.warning("%s is set but blank; it is taken as unset", name)
            changes[name] = None
    return changes


def openmp_library() -> Path | None:
    library = Path(sys.prefix) / "lib" / "libiomp5.so"
    return library if sys.platform == "linux" and library.is_file() else None


def has_metax_device() -> bool:
    return any(Path("/dev").glob(METAX_DEVICES))


def write_environment(changes: Mapping[str, str | None]) -> None:
    for name, value in changes.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def find_facts() -> Facts:
    has_vllm = importlib.util.find_spec("vllm") is not None
    try:
        gpu = not torch_device().is_cpu
    except ImportError:
        gpu = False
    compilers = any(shutil.which(name) for name in ("cc", "gcc", "clang"))
    return Facts(has_vllm=has_vllm, has_compiler=compilers or not gpu, has_gpu=gpu)


async def start(settings: EngineSettings, model_dir: Path | None) -> Started:
    """The first engine that starts. Raises SetupFailed with one line that says why none did.

    The model is there, so from here on nothing is fetched.
    """
    changes = engine_environment(
        settings, inherited(), openmp=openmp_library(), has_metax=has_metax_device()
    )
    write_environment({**changes, **OFFLINE})
    facts = Facts(has_vllm=False, has_compiler=True, has_gpu=False)
    if settings.engine is None:
        facts = await asyncio.to_thread(find_facts)
        if not facts.has_vllm:
            log.warning("vLLM is not installed here, so the transformers engine serves")
    steps: list[StartStep] = []
    for name in engines_to_try(settings, facts):
        engine = await _try(name, settings, model_dir, steps)
        if engine is None:
            continue
        began = time.monotonic()
        try:
            prompts = await asyncio.to_thread(_prompts, name, settings, model_dir)
        except Exception as error:
            # No other engine would fare better: the model's folder is at fault.
            await engine.close()
            steps.append(_step("tokenizer", began, error))
            break
        steps.append(_step("tokenizer", began))
        return Started(engine, prompts, tuple(steps))
    tried = "; ".join(f"{step.name}: {step.error}" for step in steps if step.error)
    raise SetupFailed(f"no engine could be started ({tried})", tuple(steps))


async def _try(
    name: str, settings: EngineSettings, model_dir: Path | None, steps: list[StartStep]
) -> Engine | None:
    """A started engine, or None; either way with one step more in the report."""
    began = time.monotonic()
    engine: Engine | None = None
    try:
        engine = make(name, settings, model_dir)
        await engine.start()
    except Exception as error:
        steps.append(_step(name, began, error))
        log.error("%s: %s", name, steps[-1].error)
        if engine is not None:
            await engine.close()
        return None
    steps.append(_step(name, began))
    log.info("%s started in %.1f s", name, steps[-1].seconds)
    return engine


def _step(name: str, began: float, error: Exception | None = None) -> StartStep:
    """`error` as one line."""
    text = None if error is None else " ".join(str(error).split()) or type(error).__name__
    return StartStep(name, round(time.monotonic() - began, 1), text)


def _prompts(name: str, settings: EngineSettings, model_dir: Path | None) -> Prompts:
    if name == "simulated" or model_dir is None:
        return ModelPrompts(SimulatedTokenizer(), wants_fast_path=False)
    return ModelPrompts.load(
        model_dir,
        trust_remote_code=settings.trust_remote_code,
        wants_fast_path=settings.wants_fast_template,
    )
