"""One recorded case of a vector file, and which of its outputs must hold."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

MATCH_OUTPUT, MATCH_RIGHT = ("ok", "quirk"), ("bug", "spec")


TEXTS, OBJECTS, RIGHT = ("name", "group", "function", "verdict"), ("input", "env"), "right_output"


class BadFile(ValueError):
    """Not a file of vectors; the message says why."""


class BadVector(ValueError):
    """One of a file that is none; the message says why."""


@dataclass(frozen=True)
class Vector:
    """`output` is what the seed did, `right` what is right where that differs; `env` lists what was set."""

    name: str
    group: str
    function: str
    input: dict[str, Any]
    env: dict[str, str]
    output: Any
    verdict: str
    right: Any = None
    extra: dict[str, Any] = field(default_factory=dict)

    @property
    def must_be_right(self) -> bool:
        """Whether `right` counts instead of `output`; then it may be partial or prose."""
        return self.verdict in MATCH_RIGHT

    @property
    def wanted(self) -> Any:
        return self.right if self.must_be_right else self.output


def with_wanted(vector: Vector, wanted: Any) -> Vector:
    """The same with another output, in the place of the one that counts."""
    return replace(vector, **{"right" if vector.must_be_right else "output": wanted})


def read_entries(path: Path) -> list[Any]:
    """What `vector_of` makes vectors of, one by one. Raises BadFile."""
    try:
        found = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise BadFile(f"cannot be read: {error}") from None
    if not isinstance(found, dict) or not isinstance(found.get("vectors"), list):
        raise BadFile('must be an object with a list "vectors"')
    entries: list[Any] = found["vectors"]
    return entries


def vector_of(entry: Any) -> Vector:
    """Raises BadVector."""
    if not isinstance(entry, dict):
        raise BadVector("must be an object")
    missing = [name for name in (*TEXTS, *OBJECTS, "output") if name not in entry]
    if missing:
        raise BadVector(f"has no {', '.join(map(repr, missing))}")
    for name in TEXTS:
        if not isinstance(entry[name], str):
            raise BadVector(f"{name}: must be a text")
    for name in OBJECTS:
        if not isinstance(entry[name], dict):
            raise BadVector(f"{name}: must be an object")
    for name, value in entry["env"].items():
        if not isinstance(value, str):
            raise BadVector(f"env: {name} must be a text")
    if entry["verdict"] not in (*MATCH_OUTPUT, *MATCH_RIGHT):
        raise BadVector(f"verdict {entry['verdict']!r} is unknown")
    told = {name: entry[name] for name in (*TEXTS, *OBJECTS, "output")}
    extra = {name: value for name, value in entry.items() if name not in (*told, RIGHT)}
    vector = Vector(**told, right=entry.get(RIGHT), extra=extra)
    if vector.must_be_right and RIGHT not in entry:
        raise BadVector(f"a {vector.verdict} needs a {RIGHT}")
    return vector
