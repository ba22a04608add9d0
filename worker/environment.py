"""The environment that an engine's libraries are to see, written before any of them is imported.

Deciding is pure; writing is one function.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Mapping
from pathlib import Path

from worker.settings import EngineSettings

log = logging.getLogger(__name__)
METAX_DEVICES = "mxc*"
METAX_MEMORY_SHARE = 0.60
OFFLINE = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
BLANK_HIDES = ("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES")


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
        # The offline engine's core is a process of its own too, which can be watched and ended.
        "VLLM_ENABLE_V1_MULTIPROCESSING": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }
    if "VLLM_PLUGINS" not in given and not has_metax:
        changes["VLLM_PLUGINS"] = ""
    if "VLLM_CPU_KVCACHE_SPACE" in given:
        # It would stand over the argument; it was read as a setting.
        changes["VLLM_CPU_KVCACHE_SPACE"] = None
    if "VLLM_USE_MODELSCOPE" in given:
        # It would make vLLM ask a hub, or fail for want of its client; the model is here already.
        changes["VLLM_USE_MODELSCOPE"] = None
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


def for_device(settings: EngineSettings, has_metax: bool) -> EngineSettings:
    """MetaX leaves less memory free than others: without a word of the operator vLLM takes less of it."""
    if not has_metax or "gpu_memory_utilization" in settings.model_fields_set:
        return settings
    return settings.model_copy(update={"gpu_memory_utilization": METAX_MEMORY_SHARE})
