"""Which kind of question a prompt is, and how many tokens its answer may have. Pure text rules of the first seed.

Matching is by plain substring on the trimmed, lower-cased user prompt; it knows no template and no engine.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from api.settings import BUDGET_CEILING, ApiSettings


class Route(StrEnum):
    """`override`: the caller named a budget, so nothing was routed."""

    short = "short"
    soft = "soft"
    long = "long"
    hard = "hard"
    override = "override"


@dataclass(frozen=True)
class Decision:
    route: Route
    budget_tokens: int


# One row a rule: any of its words is one hit.
HARD_RULES: tuple[tuple[str, ...], ...] = (
    ("kernel<<<",),
    ("global void", "__global__"),
    ("#include",),
)
SOFT_WORDS = ("代码", "伪代码", "核心代码", "代码片段", "import ", "def ")
LONG_WORDS = ("算子", "spmv", "convnets", "im2col", "gemm", "tensor cores", "triton", "tilelang")
LAUNCH = 0  # the row of HARD_RULES that a kernel launch also hits


class Router:
    """`route` is the whole decision; the three predicates are its parts. Prompts are taken as received."""

    def __init__(self, settings: ApiSettings) -> None:
        self._is_off = settings.disable_token_routing
        self._budgets = {
            Route.short: settings.max_new_tokens,
            Route.soft: settings.max_new_tokens_code_soft,
            Route.long: settings.max_new_tokens_code,
            Route.hard: settings.hard_budget,
        }
        built_in = {word for rule in HARD_RULES for word in rule}
        extra_hard = [w for w in settings.hard_code_question_keywords if w not in built_in]
        self._hard = (*HARD_RULES, *((word,) for word in extra_hard))
        self._hard_min = settings.hard_code_min_hits
        self._soft = _distinct(SOFT_WORDS, settings.code_question_keywords)
        built_in_long = LONG_WORDS if settings.long_answer_enable_default else ()
        self._long = _distinct(built_in_long, settings.long_answer_keywords)
        self._long_min = settings.long_answer_min_hits

    def route(self, prompt: str, override_tokens: int | None = None) -> Decision:
        """An override counts for every item of a list, and is clamped silently, as in the seed."""
        if override_tokens is not None:
            return Decision(Route.override, clamp_budget(override_tokens))
        route = Route.short if self._is_off else self._kind(normalise(prompt))
        return Decision(route, self._budgets[route])

    def is_code(self, prompt: str) -> bool:
        return self._is_soft(normalise(prompt))

    def is_hard_code(self, prompt: str) -> bool:
        return self._is_hard(normalise(prompt))

    def is_long_answer(self, prompt: str) -> bool:
        return self._is_long(normalise(prompt))

    def _kind(self, text: str) -> Route:
        if self._is_hard(text):
            return Route.hard
        if self._is_long(text):
            return Route.long
        return Route.soft if self._is_soft(text) else Route.short

    def _is_hard(self, text: str) -> bool:
        return _hits(text, self._hard) >= self._hard_min

    def _is_long(self, text: str) -> bool:
        return sum(word in text for word in self._long) >= self._long_min

    def _is_soft(self, text: str) -> bool:
        return any(word in text for word in self._soft) or _hits(text, HARD_RULES) > 0


def clamp_budget(tokens: int) -> int:
    """What /predict makes of a caller's own budget."""
    return max(1, min(BUDGET_CEILING, tokens))


def normalise(prompt: str | None) -> str:
    """No Unicode folding: full-width forms do not match, as in the seed."""
    return (prompt or "").strip().lower()


def _hits(text: str, rules: Sequence[tuple[str, ...]]) -> int:
    """How many rules match; a kernel launch and `kernel<<<` are one rule."""
    found = [any(word in text for word in rule) for rule in rules]
    found[LAUNCH] = found[LAUNCH] or _has_launch(text)
    return sum(found)


def _has_launch(text: str) -> bool:
    """`name<<<grid, block>>>` in one line; across lines it would catch the marks of a merge conflict."""
    if "<<<" not in text or ">>>" not in text:
        return False
    return any(
        line.find(">>>", line.find("<<<") + 3) > 0 for line in text.split("\n") if "<<<" in line
    )


def _distinct(built_in: Iterable[str], extra: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys((*built_in, *extra)))
