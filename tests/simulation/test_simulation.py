"""The queue's two halves under seeded schedules of faults, in simulated time: see `python -m tests.simulation`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import cache

import pytest

from tests.simulation.run import Verdict
from tests.simulation.suite import CAME_ABOUT, RUNS, SUITE, run

Runs = Callable[[str, int], Verdict]


@pytest.fixture(scope="module")
def verdict_of(socket_path: str) -> Runs:
    """Of a profile and a seed; each run once."""

    @cache
    def verdict(profile: str, seed: int) -> Verdict:
        return run(socket_path, seed, SUITE[profile].steps, profile)

    return verdict


@pytest.mark.parametrize(("profile", "seed"), RUNS)
def test_no_request_is_lost_doubled_or_stuck(verdict_of: Runs, profile: str, seed: int) -> None:
    again = f"python -m tests.simulation --profile {profile} --seed {seed} --trace"
    assert verdict_of(profile, seed).broken == [], again


def test_everything_that_is_judged_came_about(verdict_of: Runs) -> None:
    totals: Counter[str] = Counter()
    for profile, seed in RUNS:
        totals.update(verdict_of(profile, seed).counts)
    assert [what for what in CAME_ABOUT if not totals[what]] == []


def test_most_of_what_a_wiped_broker_held_is_answered(verdict_of: Runs) -> None:
    totals: Counter[str] = Counter()
    for seed in range(SUITE["wipe"].seeds):
        totals.update(verdict_of("wipe", seed).counts)
    assert totals["submitted again"] > totals["broker_lost"] > 0


def test_the_same_seed_is_the_same_run(verdict_of: Runs, socket_path: str) -> None:
    first = verdict_of("all", 7)
    assert run(socket_path, 7, SUITE["all"].steps, "all").trace == first.trace
    assert first.faults > 0
