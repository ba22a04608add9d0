"""Figures as they are printed: one JSON object a line, and whether each meets its target. Measures nothing itself."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass


@dataclass(frozen=True)
class Figure:
    """`peer` is the same thing measured on somebody else in the same run; `ratio` is value / peer.

    `target` is words; `ok` says whether it is met, None where there is none.
    """

    name: str
    value: float
    unit: str
    peer: float | None = None
    ratio: float | None = None
    target: str | None = None
    ok: bool | None = None

    @property
    def line(self) -> str:
        shown = {k: _short(v) if isinstance(v, float) else v for k, v in asdict(self).items()}
        return json.dumps(shown, allow_nan=False)


def plain(name: str, value: float, unit: str, peer: float | None = None) -> Figure:
    return Figure(name, value, unit, peer, _ratio(value, peer))


def at_most(name: str, value: float, unit: str, limit: float, peer: float | None = None) -> Figure:
    target = f"at most {limit:g} {unit}"
    return Figure(name, value, unit, peer, _ratio(value, peer), target, value <= limit)


def at_least(name: str, value: float, unit: str, limit: float) -> Figure:
    return Figure(name, value, unit, target=f"at least {limit:g} {unit}", ok=value >= limit)


def at_least_of_peer(name: str, value: float, unit: str, peer: float, share: float) -> Figure:
    """`share` is the least ratio that is good enough."""
    ratio = _ratio(value, peer)
    ok = ratio is not None and ratio >= share
    word = "of" if share <= 1 else "times"
    return Figure(name, value, unit, peer, ratio, f"at least {share:g} {word} the peer", ok)


def show(figures: Iterable[Figure]) -> bool:
    """Prints each as it comes; False where one misses its target."""
    all_met = True
    for figure in figures:
        print(figure.line, flush=True)
        all_met = all_met and figure.ok is not False
    return all_met


def note(text: str) -> None:
    """Progress for whoever watches; standard output holds figures alone."""
    print(text, file=sys.stderr, flush=True)


def percentile(values: Sequence[float], percent: float) -> float:
    """The smallest value that at least `percent` of all are not above."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)]


def median(values: Sequence[float]) -> float:
    return percentile(values, 50)


def _ratio(value: float, peer: float | None) -> float | None:
    return value / peer if peer else None


def _short(value: float) -> float:
    """Four digits are more than any of these measurements can tell."""
    return float(f"{value:.4g}")
