"""How long to wait before a part that died is started again. Pure: time and chance are arguments."""

from __future__ import annotations

from dataclasses import dataclass

FIRST_S = 0.5
LONGEST_S = 30.0
HEALTHY_S = 60.0  # a part that lived this long starts with a clean sheet


@dataclass(frozen=True)
class Backoff:
    """Counts the deaths in a row; each `after` gives the next count and the wait."""

    deaths: int = 0

    def after(self, lived_s: float, chance: float) -> tuple[Backoff, float]:
        """`chance` in [0, 1) spreads restarts: the wait is between half and all of its step, and
        never below the first.
        """
        deaths = 1 if lived_s >= HEALTHY_S else self.deaths + 1
        step_s = min(LONGEST_S, FIRST_S * 2.0 ** min(deaths - 1, 16))
        return Backoff(deaths), max(FIRST_S, step_s * (0.5 + chance / 2))
