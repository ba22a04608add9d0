"""Which processes make up the service, and with which environment each runs. Pure but for reading
what the machine has.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from cli.broker import Broker
from cli.data_folder import DataFolder
from cli.machine import share_cores
from cli.supervisor import Part

BROKER_GRACE_S = 20.0
MODEL_GRACE_S = 1.0
API_MARGIN_S = 10.0  # after its drain a front door still has replies to send and a broker to leave
WORKER_MARGIN_S = 5.0  # after its drain a worker still has an engine to shut down

NO_STATISTICS = {"VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}
OFFLINE = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}


@dataclass(frozen=True)
class Placement:
    """Where one worker runs: on some GPUs, or on some cores (empty: as the engine likes)."""

    gpus: tuple[str, ...] = ()
    cores: tuple[int, ...] = ()
    openmp: Path | None = None


def placements(
    workers: int | None,
    gpus: Sequence[str],
    gpus_each: int,
    cores: Sequence[int],
    openmp: Path | None,
) -> list[Placement]:
    """GPUs in turn where there are any, None for as many workers as they serve. On a CPU each of
    several workers has its own cores, as two engines on one core halve each other.
    """
    if not gpus:
        if workers in (None, 1):
            return [Placement(openmp=openmp)]
        shares = share_cores(cores, workers or 1)
        return [Placement(cores=tuple(share), openmp=openmp) for share in shares]
    each = min(gpus_each, len(gpus))
    groups = [tuple(gpus[at : at + each]) for at in range(0, len(gpus) - each + 1, each)]
    number = len(groups) if workers is None else workers
    return [Placement(gpus=groups[i % len(groups)]) for i in range(number)]


def placement_env(placement: Placement, ld_preload: str | None, bound: bool) -> dict[str, str]:
    """`bound`: the user has said which cores the engine takes, so nothing is said here."""
    env = {}
    if placement.gpus:
        env["CUDA_VISIBLE_DEVICES"] = ",".join(placement.gpus)
    if placement.cores and not bound:
        env["VLLM_CPU_OMP_THREADS_BIND"] = ",".join(map(str, placement.cores))
    if placement.openmp is not None and "libiomp" not in (ld_preload or ""):
        env |= preload(str(placement.openmp), ld_preload)
    return env


def preload(library: str, ld_preload: str | None) -> dict[str, str]:
    """Before what the user preloads; not at all where its path would be read as two."""
    if re.search(r"[\s:]", library):
        return {}
    return {"LD_PRELOAD": ":".join(filter(None, (library, ld_preload)))}


def module(name: str) -> tuple[str, ...]:
    return (sys.executable, "-m", name)


def broker_part(
    broker: Broker,
    folder: DataFolder,
    env: Mapping[str, str],
    allocator: str | None = None,
    ld_preload: str | None = None,
) -> Part:
    """`allocator`: a library in place of the C library's, where the user preloads no other."""
    if allocator is not None and "malloc" not in (ld_preload or ""):
        env = {**env, **preload(allocator, ld_preload)}
    return Part(
        "broker",
        broker.command(),
        env,
        folder.log("broker"),
        folder.record("broker"),
        BROKER_GRACE_S,
    )


def api_part(
    folder: DataFolder, env: Mapping[str, str], host: str, port: int, drain_s: float
) -> Part:
    own = {"HOST": host, "PORT": str(port), **NO_STATISTICS}
    return Part(
        "api",
        module("api"),
        {**env, **own},
        folder.log("api"),
        folder.record("api"),
        drain_s + API_MARGIN_S,
    )


def model_part(folder: DataFolder, env: Mapping[str, str]) -> Part:
    """Finds or prepares the model, and ends. The hubs are open to it alone."""
    own = {**NO_STATISTICS, "PYTHONUNBUFFERED": "1"}
    return Part(
        "model",
        module("worker.model"),
        {**env, **own},
        folder.log("model"),
        folder.record("model"),
        MODEL_GRACE_S,
    )


def worker_part(
    number: int,
    folder: DataFolder,
    env: Mapping[str, str],
    model_dir: Path | None,
    placed: Mapping[str, str],
    drain_s: float,
    host: str | None = None,
    first_port: int = 0,
) -> Part:
    """The `number`-th worker, from 1. Everything it needs is on disk, so the hubs are closed to it.

    `host` goes before its id where workers of other machines share the broker. `first_port` is the
    first worker's own port, 0 for none.
    """
    name = f"worker-{number}"
    own = {"WORKER_ID": worker_id(name, host), **NO_STATISTICS, **OFFLINE, **placed}
    if first_port:
        own["WORKER_PORT"] = str(first_port + number - 1)
    if model_dir is not None:
        own["MODEL_DIR"] = str(model_dir)
    return Part(
        name,
        module("worker"),
        {**env, **own},
        folder.log(name),
        folder.record(name),
        drain_s + WORKER_MARGIN_S,
    )


def worker_id(part: str, host: str | None) -> str:
    return part if host is None else f"{re.sub(r'[^A-Za-z0-9._-]', '-', host)[:48]}-{part}"
