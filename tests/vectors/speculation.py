"""Speculative decoding as it is described to vLLM."""

from __future__ import annotations

import re
from typing import Any

from tests.vectors.comparison import (
    Difference,
    Differences,
    Meaning,
    exact,
    partial,
    prose,
    stated,
)
from tests.vectors.surroundings import Surroundings
from tests.vectors.vector import Vector
from worker.settings import EngineSettings
from worker.speculation import speculative_config

# vLLM refuses a description with a key that it has given up.
GONE = ("disable_logprobs", "disable_by_batch_size")
# A right output with these is told whole.
ALWAYS = {"method", "num_speculative_tokens"}


def build_speculative_config(vector: Vector, around: Surroundings) -> Differences:
    config = speculative_config(EngineSettings.load(), around.folder)
    folder = str(around.folder)
    found = config and {
        name: value.replace(folder, "$TMP") if isinstance(value, str) else value
        for name, value in config.items()
    }
    wanted = vector.wanted
    if isinstance(wanted, str):
        return prose(wanted, found, MEANINGS)
    is_whole = not isinstance(wanted, dict) or wanted.keys() >= ALWAYS
    wrong = (
        exact(wanted, found)
        if is_whole
        else stated(wanted, wanted.keys()) or partial(wanted, found)
    )
    gone = [name for name in GONE if name in (found or {})]
    return wrong + [Difference(name, "not given", found) for name in gone]


def _has_no_key(words: re.Match[str], found: Any) -> Differences:
    key = words["key"]
    if found is None:
        return [Difference(key, "a description without it", found)]
    return [Difference(key, "not given", found)] if key in found else []


MEANINGS: dict[str, Meaning] = {r"no `?(?P<key>\w+)`? key": _has_no_key}
