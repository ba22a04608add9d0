"""Runs files of vectors: one result for each, and what is said of them all."""

from __future__ import annotations

import asyncio
import inspect
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from pathlib import Path

from tests.vectors.comparison import Difference, Differences
from tests.vectors.registry import CHECKS
from tests.vectors.skips import rule_for
from tests.vectors.surroundings import surroundings
from tests.vectors.vector import BadFile, Vector, read_vectors

LIMIT_S = 30.0


class Verdict(Enum):
    PASSED = auto()
    FAILED = auto()
    SKIPPED = auto()


@dataclass(frozen=True)
class Result:
    """`why` is what differs, or the reason of the rule by which it is skipped."""

    name: str
    verdict: Verdict
    why: str = ""


async def run_file(path: Path, broker_url: Callable[[], str]) -> list[Result]:
    """A file that cannot be read is one failure."""
    try:
        vectors = read_vectors(path)
    except BadFile as error:
        return [Result(str(path), Verdict.FAILED, str(error))]
    return [await run(vector, broker_url) for vector in vectors]


async def run(vector: Vector, broker_url: Callable[[], str]) -> Result:
    wrong = await differences(vector, broker_url)
    if not wrong:
        return Result(vector.name, Verdict.PASSED)
    rule = rule_for(vector)
    if rule is not None:
        return Result(vector.name, Verdict.SKIPPED, rule.reason)
    return Result(vector.name, Verdict.FAILED, "; ".join(map(str, wrong)))


async def differences(vector: Vector, broker_url: Callable[[], str]) -> Differences:
    """Whatever a check raises is a difference too: the vector did not come to its output."""
    check = CHECKS.get(vector.function)
    if check is None:
        return [Difference("function", vector.function, "one that this runner does not know")]
    try:
        with surroundings(vector.env, broker_url) as around:
            async with asyncio.timeout(LIMIT_S):
                found = check(vector, around)
                return await found if inspect.isawaitable(found) else found
    except Exception as error:
        return [Difference("", vector.wanted, f"{type(error).__name__}: {error}")]


def told(results: Sequence[Result]) -> Iterator[str]:
    """A line for each failure, one for each rule that skipped, and the totals as the last one."""
    for result in results:
        if result.verdict is Verdict.FAILED:
            yield f"FAILED {result.name}: {' '.join(result.why.split())}"
    reasons = Counter(r.why for r in results if r.verdict is Verdict.SKIPPED)
    for reason, count in reasons.items():
        yield f"skipped {count}: {reason}"
    totals = Counter(result.verdict for result in results)
    yield (
        f"{totals[Verdict.PASSED]} passed, {totals[Verdict.FAILED]} failed, "
        f"{totals[Verdict.SKIPPED]} skipped"
    )
