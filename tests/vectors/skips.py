"""What is not as the recordings say, on purpose: rules on a vector's group and content, each with its reason.

`docs/conformance.md` lists them with the same reasons. A rule counts only where the vector does not hold, and
covers what it is about alone: all else of the vector must hold without it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from shared.settings import TRUTHY
from tests.vectors.comparison import is_digest
from tests.vectors.vector import Vector, with_wanted

EAGER = "VLLM_ENFORCE_EAGER"
# The seed forgot which one it was where a repair came in between.
GENERATIONS = ("async_v0", "async_v1", None)
GONE_ARGUMENTS = frozenset({"device", "tokenizer_pool_size", "tokenizer_pool_type"})


@dataclass(frozen=True)
class SkipRule:
    """`without` gives a vector that `holds` is true of, less what the rule is about: on both sides, so from what
    goes in too.
    """

    reason: str
    holds: Callable[[Vector], bool]
    without: Callable[[Vector], Vector]


def rules_for(vector: Vector) -> list[SkipRule]:
    return [rule for rule in RULES if rule.holds(vector)]


def _falls_back_between_generations(vector: Vector) -> bool:
    return (
        vector.group == "boot"
        and vector.env.get("SERVE_VLLM_ENGINE", "").strip().lower() == "v1"
        and any(vector.input.get("constructor_errors", ()))
    )


def _without_fallback(vector: Vector) -> Vector:
    """As if the first of two tries with the same arguments had not been made: its failure is not given, and
    which generation came up in the end is not asked for.
    """
    attempts = _attempts(vector)
    again = next((at for at, pair in enumerate(pairwise(attempts)) if pair[0] == pair[1]), None)
    if again is None:
        return vector
    errors = vector.input["constructor_errors"]
    wanted = dict(vector.wanted)
    if wanted.get("engine_kind") in GENERATIONS:
        wanted.pop("engine_kind", None)
    return replace(
        with_wanted(vector, {**wanted, "attempts": attempts[:again] + attempts[again + 1 :]}),
        input={**vector.input, "constructor_errors": errors[:again] + errors[again + 1 :]},
    )


def _wants_gone_arguments(vector: Vector) -> bool:
    return vector.group == "boot" and any(
        GONE_ARGUMENTS & each.keys() for each in _attempts(vector)
    )


def _is_eager_elsewhere(vector: Vector) -> bool:
    return (
        vector.group == "boot"
        and vector.env.get(EAGER, "").strip().lower() in TRUTHY
        and not vector.input.get("metax_device")
    )


def _without_eager(vector: Vector) -> Vector:
    env = {name: value for name, value in vector.env.items() if name != EAGER}
    return replace(_without_keys(vector, frozenset({"enforce_eager"})), env=env)


def _without_keys(vector: Vector, keys: frozenset[str]) -> Vector:
    """Of the tries that are wanted. Ours never have them."""
    if not isinstance(vector.wanted, dict) or "attempts" not in vector.wanted:
        return vector
    attempts = [
        {name: value for name, value in each.items() if name not in keys}
        for each in _attempts(vector)
    ]
    return with_wanted(vector, {**vector.wanted, "attempts": attempts})


def _sets_what_is_no_text(vector: Vector) -> bool:
    given = vector.input.get("new_prompt")
    return vector.group == "system_prompt" and not (isinstance(given, str) or is_digest(given))


def _is_refused(vector: Vector) -> Vector:
    """Of the conversion nothing is left but that the door is shut."""
    return with_wanted(vector, {"status": 422})


def _attempts(vector: Vector) -> list[dict[str, Any]]:
    wanted = vector.wanted
    attempts: list[dict[str, Any]] = wanted.get("attempts", []) if isinstance(wanted, dict) else []
    return attempts


RULES = (
    SkipRule(
        "vLLM has one engine today: there is no v0 to fall back to when v1 does not start",
        _falls_back_between_generations,
        _without_fallback,
    ),
    SkipRule(
        "vLLM has no argument for a device or a tokenizer pool any more",
        _wants_gone_arguments,
        lambda vector: _without_keys(vector, GONE_ARGUMENTS),
    ),
    SkipRule(
        "VLLM_ENFORCE_EAGER is honoured on every device, not on MetaX alone",
        _is_eager_elsewhere,
        _without_eager,
    ),
    SkipRule(
        "a system prompt that is no text is refused at the door, as there, so none is left to convert",
        _sets_what_is_no_text,
        _is_refused,
    ),
)
