"""What CI runs of each profile, and what a run by hand takes of it."""

from __future__ import annotations

import msgspec

from tests.simulation import schedule, single
from tests.simulation.run import Verdict, simulate


class Share(msgspec.Struct, frozen=True):
    """Seeds from 0 on, and steps in each run."""

    seeds: int
    steps: int


SUITE = {
    "all": Share(24, 36),
    "calm": Share(6, 36),
    "lists": Share(4, 9),
    "wipe": Share(3, 4),
    "claims": Share(3, 4),
    "late": Share(3, 4),
    "leave": Share(3, 4),
}
RUNS = tuple((profile, seed) for profile, share in SUITE.items() for seed in range(share.seeds))
# What must have come about in all of them together, by the names in a verdict's counts. A check of what never happens
# passes as well.
CAME_ABOUT = (
    *("F", "engine_error", "cancelled", "client_gone", "expired", "dependency_failed"),
    *("chains", "children", "streams read", "streams reset", "clients left"),
    *("wipes judged", "submitted again", "broker_lost", "claims repeated", "orphans given back"),
)


def run(socket_path: str, seed: int, steps: int, profile: str) -> Verdict:
    if profile in single.PROFILES:
        plan, happenings = single.plan_of(seed, profile), single.SingleFault(steps, profile)
        return simulate(socket_path, seed, plan, happenings)
    plan = schedule.plan_of(seed, profile)
    return simulate(socket_path, seed, plan, schedule.Happenings(steps, profile))
