"""The start as a list of tries: engines in order, and for each the repairs that its failure asks for.

Knows no engine: whoever calls says how one is made. Every try and every repair is logged, and stands in the report.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from shared.errors import EngineError
from shared.worker_info import StartStep
from worker.repairs import Arguments, Machine, difference, next_repair

log = logging.getLogger(__name__)
T = TypeVar("T")


@dataclass(frozen=True)
class Brought(Generic[T]):
    """The engine that started, its kind's name, and the arguments that it started with in the end."""

    engine: T
    kind: str
    arguments: Arguments


class SetupFailed(EngineError):
    """No engine started. The message is one clear line; `report` holds every try."""

    def __init__(self, message: str, report: Sequence[StartStep]) -> None:
        super().__init__(message)
        self.report = tuple(report)


async def climb(
    kinds: Sequence[str],
    arguments: Arguments,
    construct: Callable[[str, Arguments], Awaitable[T]],
    machine: Machine,
    report: list[StartStep],
    on_repair: Callable[[str], None] = lambda name: None,
) -> Brought[T]:
    """The first engine of `kinds` that `construct` brings up. Raises SetupFailed.

    What one engine taught is kept for the next one. `report` grows by a step for each try and repair.
    """
    for kind in kinds:
        used: frozenset[str] = frozenset()
        while True:
            began = time.monotonic()
            try:
                engine = await construct(kind, arguments)
            except Exception as error:
                report.append(step_of(kind, began, error))
                log.error("%s: %s", kind, report[-1].error)
                found = _repair(arguments, error, machine, used)
            else:
                report.append(step_of(kind, began))
                log.info("%s started in %.1f s", kind, report[-1].seconds)
                return Brought(engine, kind, arguments)
            if found is None:
                break
            name, changed = found
            change = difference(arguments, changed)
            log.warning("%s: repair %s: %s; trying again", kind, name, change)
            report.append(StartStep(f"repair {name}: {change}", 0.0))
            on_repair(name)
            used, arguments = used | {name}, changed
    tried = "; ".join(f"{step.name}: {step.error}" for step in report if step.error)
    raise SetupFailed(f"no engine could be started ({tried})", report)


def _repair(
    arguments: Arguments, error: BaseException, machine: Machine, used: frozenset[str]
) -> tuple[str, dict[str, Any]] | None:
    """Arguments may hold whatever an operator wrote; a step that chokes on them has nothing to offer."""
    try:
        return next_repair(arguments, error, machine, used)
    except Exception:
        log.exception("a repair failed")
        return None


def step_of(name: str, began: float, error: Exception | None = None) -> StartStep:
    """`began` on the monotonic clock; `error` as one line."""
    text = None if error is None else " ".join(str(error).split()) or type(error).__name__
    return StartStep(name, round(time.monotonic() - began, 1), text)
