"""What `sluice` reads from the environment and `.env`: where things are, how many workers, which
broker.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field

from shared.settings import Settings


def _memory(value: str) -> str:
    """The broker's own way to write a size; with any other it would not start."""
    if not re.fullmatch(r"[0-9]+(b|[kmg]b?)?", value, re.IGNORECASE):
        raise ValueError("must be a whole number of bytes, or of kb, mb or gb, such as 2gb")
    return value


class UpSettings(Settings):
    """Settings of `up`, `down` and `logs`. The parts read their own; what is decided here is handed
    down to them.
    """

    host: str = "127.0.0.1"
    port: Annotated[int, Field(ge=1, le=65535)] = 8000
    data_dir: Path = Path("data")
    workers: Annotated[int, Field(ge=0, le=256)] | None = None
    """None: one, or one for each GPU."""
    tensor_parallel_size: Annotated[int, Field(ge=1)] = 1
    """How many GPUs one worker takes, times PIPELINE_PARALLEL_SIZE."""
    pipeline_parallel_size: Annotated[int, Field(ge=1)] = 1
    vllm_cpu_omp_threads_bind: str = "nobind"
    """The cores of an engine on a CPU; unset: several workers share them out."""
    redis_url: str | None = None
    """None: an embedded broker is started."""
    broker_port: Annotated[int, Field(ge=0, le=65535)] = 0
    """A TCP port on the loopback for the embedded broker; 0: its socket alone."""
    broker_maxmemory: Annotated[str, AfterValidator(_memory)] = "0"
    """The embedded broker's limit such as 2gb; 0: none."""
    durability: Literal["none", "aof"] = "none"
    engine: str | None = None
    """The worker's choice of engine; `simulated` needs no model."""
    api_drain_s: Annotated[float, Field(ge=0, le=600)] = 7.0
    """How long a front door that is stopped still holds the callers that wait."""
    drain_s: Annotated[float, Field(ge=0, le=3600)] = 30.0
    """How long a worker that is stopped may go on with what it has begun."""
    worker_port: Annotated[int, Field(ge=0, le=65535)] = 0
    """The first worker's own port, the next worker's is one more; 0: none has one."""

    @property
    def needs_model(self) -> bool:
        return self.engine != "simulated"


@dataclass(frozen=True)
class PlacementVariables:
    """Variables of other programs that say which devices and libraries a worker may use. Blank means absent."""

    cuda_visible_devices: str | None
    ld_preload: str | None

    @classmethod
    def read(cls) -> Self:
        names = ("CUDA_VISIBLE_DEVICES", "LD_PRELOAD")
        return cls(*(os.environ.get(name) or None for name in names))


def inherited() -> dict[str, str]:
    """The environment that parts inherit."""
    return dict(os.environ)
