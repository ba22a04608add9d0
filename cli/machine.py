"""What this machine has: cores, GPUs, a faster OpenMP, a faster allocator; and its limit of open
files. Knows nothing of the parts.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from ctypes.util import find_library
from pathlib import Path


def visible_gpus(limited_to: str | None) -> list[str]:
    """Ids for CUDA_VISIBLE_DEVICES, one each. `limited_to` is the user's own value of that
    variable.
    """
    if limited_to is not None:
        return [name.strip() for name in limited_to.split(",") if name.strip() not in ("", "-1")]
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return []
    try:
        listed = subprocess.run([tool, "-L"], capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return []
    if listed.returncode != 0:
        return []
    return [str(i) for i, _ in enumerate(x for x in listed.stdout.splitlines() if "GPU " in x)]


def cores() -> list[int]:
    """The cores that this process may use, by number."""
    if sys.platform.startswith("linux"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def share_cores(cores: Sequence[int], workers: int) -> list[list[int]]:
    """Splits cores among workers as evenly as it goes; nothing where there are too few."""
    if workers > len(cores):
        return [[] for _ in range(workers)]
    each, over = divmod(len(cores), workers)
    shares, at = [], 0
    for index in range(workers):
        size = each + (index < over)
        shares.append(list(cores[at : at + size]))
        at += size
    return shares


def openmp_library(prefix: Path = Path(sys.prefix)) -> Path | None:
    """Intel's OpenMP runtime, where the environment has it: vLLM's CPU build is faster with it
    preloaded.
    """
    library = prefix / "lib" / "libiomp5.so"
    return library if sys.platform.startswith("linux") and library.is_file() else None


def allocator_library(prefix: Path = Path(sys.prefix)) -> str | None:
    """jemalloc, where the machine has it or set-up has fetched it. Valkey is made for it, and the server
    that comes by pip is built without: on the C library's a queue takes a quarter more of its time.
    """
    if not sys.platform.startswith("linux"):
        return None
    own = prefix / "lib" / "libjemalloc.so.2"
    return find_library("jemalloc") or (str(own) if own.is_file() else None)
