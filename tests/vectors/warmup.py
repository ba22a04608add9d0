"""The texts of a warm-up, out of files of every kind."""

from __future__ import annotations

import base64
from pathlib import Path

from tests.vectors.comparison import Differences, exact
from tests.vectors.surroundings import Surroundings
from tests.vectors.vector import Vector
from worker.warmup_data import load_user_prompts


def load_warmup_user_prompts(vector: Vector, around: Surroundings) -> Differences:
    given = vector.input
    for name, told in given.get("files", {}).items():
        path = around.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        is_text = "text" in told
        path.write_bytes(told["text"].encode() if is_text else base64.b64decode(told["base64"]))
    return exact(vector.wanted, load_user_prompts(Path(given["path"]), given["limit"]))
