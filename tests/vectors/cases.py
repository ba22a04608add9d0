"""Vectors for the tests of the runner, and what it makes of one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.vectors.runner import Result, run
from tests.vectors.vector import read_entries

SHORT = {
    "name": "short",
    "group": "cn_short",
    "function": "routing",
    "input": {"prompt": "什么是尾延迟"},
    "env": {},
    "output": {"pick_max_new_tokens": 32, "route": "short"},
    "verdict": "ok",
}
FIRST_TRY = {"enable_prefix_caching": True, "gpu_memory_utilization": 0.85, "dtype": "float16"}
V1 = {"SERVE_VLLM_ENGINE": "v1"}
FITS = "KV cache: the estimated maximum model length is 5000."


def short(**changed: Any) -> dict[str, Any]:
    return {**SHORT, **changed}


def started(**changed: Any) -> dict[str, Any]:
    """A start without failures, whose one try has what `output` of it says."""
    return {
        "name": "start",
        "group": "boot",
        "function": "engine_start",
        "input": {"constructor_errors": [], "metax_device": False},
        "env": {},
        "output": {"started": True, "attempts": [FIRST_TRY]},
        "verdict": "ok",
        **changed,
    }


def written(folder: Path, *vectors: Any) -> Path:
    path = folder / "some.json"
    path.write_text(json.dumps({"meta": {}, "vectors": list(vectors)}), "utf-8")
    return path


def no_broker() -> str:
    raise AssertionError("no broker is needed")


async def result_of(folder: Path, vector: dict[str, Any]) -> Result:
    """As it comes back out of a file."""
    (read,) = read_entries(written(folder, vector))
    return await run(read, "vectors[0]", no_broker)


def wanting(attempt: dict[str, Any], **env: str) -> dict[str, Any]:
    return started(env=env, output={"started": True, "attempts": [attempt]})


def right(of: dict[str, Any], output: Any) -> dict[str, Any]:
    return {**of, "verdict": "bug", "right_output": output}
