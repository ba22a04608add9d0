"""Runs files of vectors: one result for each, and what is said of them all."""

from __future__ import annotations

import asyncio
import inspect
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from pathlib import Path
from typing import Any

from tests.vectors.comparison import Difference, Differences
from tests.vectors.registry import CHECKS
from tests.vectors.skips import rules_for
from tests.vectors.surroundings import surroundings
from tests.vectors.vector import BadFile, Vector, read_entries, vector_of

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
        entries = read_entries(path)
    except BadFile as error:
        return [Result(str(path), Verdict.FAILED, str(error))]
    return [
        await run(entry, f"{path.name} vectors[{at}]", broker_url)
        for at, entry in enumerate(entries)
    ]


async def run(entry: Any, place: str, broker_url: Callable[[], str]) -> Result:
    """Whatever is wrong with an entry or raised by its check is that entry's failure and no other's."""
    name = entry.get("name") if isinstance(entry, dict) else None
    try:
        return await _result(vector_of(entry), broker_url)
    except Exception as error:
        why = f"{type(error).__name__}: {error}"
        return Result(name if isinstance(name, str) else place, Verdict.FAILED, why)


async def _result(vector: Vector, broker_url: Callable[[], str]) -> Result:
    wrong = await _differences(vector, broker_url)
    rules = rules_for(vector) if wrong else []
    if rules:
        rest = vector
        for rule in rules:
            rest = rule.without(rest)
        wrong = await _differences(rest, broker_url)
    if wrong:
        return Result(vector.name, Verdict.FAILED, "; ".join(map(str, wrong)))
    if rules:
        return Result(vector.name, Verdict.SKIPPED, "; ".join(rule.reason for rule in rules))
    return Result(vector.name, Verdict.PASSED)


async def _differences(vector: Vector, broker_url: Callable[[], str]) -> Differences:
    check = CHECKS.get(vector.function)
    if check is None:
        return [Difference("function", vector.function, "one that this runner does not know")]
    with surroundings(vector.env, broker_url) as around:
        async with asyncio.timeout(LIMIT_S):
            found = check(vector, around)
            return await found if inspect.isawaitable(found) else found


def told(results: Sequence[Result]) -> Iterator[str]:
    """A line for each failure, one for each rule that skipped, and the totals as the last one."""
    for result in results:
        if result.verdict is Verdict.FAILED:
            yield " ".join(f"FAILED {result.name}: {result.why}".split())
    reasons = Counter(r.why for r in results if r.verdict is Verdict.SKIPPED)
    for reason, count in reasons.items():
        yield f"skipped {count}: {reason}"
    totals = Counter(result.verdict for result in results)
    yield (
        f"{totals[Verdict.PASSED]} passed, {totals[Verdict.FAILED]} failed, "
        f"{totals[Verdict.SKIPPED]} skipped"
    )
