"""Reads the recorded vectors: inputs, the settings they ran under, and what must come out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

DATA = Path(__file__).parents[1] / "vectors" / "data"


def vectors(name: str, function: str | None = None) -> list[dict[str, Any]]:
    """Those of `<name>_open.json`; `function` keeps one function's."""
    loaded = json.loads((DATA / f"{name}_open.json").read_text(encoding="utf-8"))["vectors"]
    return [v for v in loaded if function is None or v["function"] == function]


def expected(vector: dict[str, Any]) -> Any:
    """`ok` and `quirk` match what the seed did, `bug` and `spec` what is right."""
    return vector["output" if vector["verdict"] in ("ok", "quirk") else "right_output"]
