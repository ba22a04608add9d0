"""What is not as the recordings say, on purpose: rules on a vector's group and content, each with its reason.

`docs/conformance.md` lists them with the same reasons. A rule counts only where the vector does not hold:
what passes is never skipped.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from shared.settings import TRUTHY
from tests.vectors.comparison import is_digest
from tests.vectors.vector import Vector

GONE_ARGUMENTS = frozenset({"device", "tokenizer_pool_size", "tokenizer_pool_type"})


@dataclass(frozen=True)
class SkipRule:
    reason: str
    holds: Callable[[Vector], bool]


def rule_for(vector: Vector) -> SkipRule | None:
    return next((rule for rule in RULES if rule.holds(vector)), None)


def _falls_back_between_generations(vector: Vector) -> bool:
    return (
        vector.group == "boot"
        and vector.env.get("SERVE_VLLM_ENGINE", "").strip().lower() == "v1"
        and any(vector.input.get("constructor_errors", ()))
    )


def _wants_gone_arguments(vector: Vector) -> bool:
    return vector.group == "boot" and any(
        GONE_ARGUMENTS & attempt.keys() for attempt in _attempts(vector.wanted)
    )


def _is_eager_elsewhere(vector: Vector) -> bool:
    return (
        vector.group == "boot"
        and vector.env.get("VLLM_ENFORCE_EAGER", "").strip().lower() in TRUTHY
        and not vector.input.get("metax_device")
    )


def _sets_what_is_no_text(vector: Vector) -> bool:
    given = vector.input.get("new_prompt")
    return vector.group == "system_prompt" and not (isinstance(given, str) or is_digest(given))


def _attempts(wanted: Any) -> list[dict[str, Any]]:
    attempts = wanted.get("attempts", []) if isinstance(wanted, dict) else []
    return [attempt for attempt in attempts if isinstance(attempt, dict)]


RULES = (
    SkipRule(
        "vLLM has one engine today: there is no v0 to fall back to when v1 does not start",
        _falls_back_between_generations,
    ),
    SkipRule(
        "vLLM has no argument for a device or a tokenizer pool any more",
        _wants_gone_arguments,
    ),
    SkipRule(
        "VLLM_ENFORCE_EAGER is honoured on every device, not on MetaX alone",
        _is_eager_elsewhere,
    ),
    SkipRule(
        "a system prompt that is no text is refused at the door, as there, so none is left to convert",
        _sets_what_is_no_text,
    ),
)
