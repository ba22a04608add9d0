"""A loop that leaves out what it is there for is noticed by the runs of CI."""

from __future__ import annotations

from unittest import mock

import pytest

from tests.simulation.mutants import MUTANTS, Mutant
from tests.simulation.suite import SUITE, run


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutant_of_the_loops_is_killed(socket_path: str, mutant: Mutant) -> None:
    share = SUITE[mutant.profile]
    told: list[str] = []
    with mock.patch.object(mutant.where, mutant.method, mutant.by):
        for seed in range(share.seeds):
            told = run(socket_path, seed, share.steps, mutant.profile).broken
            if any(mutant.told in line for line in told):
                return
    pytest.fail(f"{share.seeds} runs of `{mutant.profile}` let it live; the last said {told}")
