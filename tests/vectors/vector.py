"""One recorded case of a vector file, and which of its outputs must hold."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

MATCH_OUTPUT, MATCH_RIGHT = ("ok", "quirk"), ("bug", "spec")


class BadFile(ValueError):
    """Not a file of vectors; the message says why."""


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


def read_vectors(path: Path) -> list[Vector]:
    """Raises BadFile."""
    try:
        found = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise BadFile(f"cannot be read: {error}") from None
    if not isinstance(found, dict) or not isinstance(found.get("vectors"), list):
        raise BadFile('must be an object with a list "vectors"')
    return [_vector(index, each) for index, each in enumerate(found["vectors"])]


def _vector(index: int, told: Any) -> Vector:
    if not isinstance(told, dict):
        raise BadFile(f"vectors[{index}]: must be an object")
    given = dict(told)
    try:
        vector = Vector(
            name=given.pop("name"),
            group=given.pop("group"),
            function=given.pop("function"),
            input=given.pop("input"),
            env=given.pop("env"),
            output=given.pop("output"),
            verdict=given.pop("verdict"),
            right=given.pop("right_output", None),
            extra=given,
        )
    except KeyError as error:
        raise BadFile(f"vectors[{index}]: has no {error}") from None
    if vector.verdict not in (*MATCH_OUTPUT, *MATCH_RIGHT):
        raise BadFile(f"vectors[{index}]: verdict {vector.verdict!r} is unknown")
    if vector.must_be_right and "right_output" not in told:
        raise BadFile(f"vectors[{index}]: a {vector.verdict} needs a right_output")
    return vector
