"""What must hold finds scripts that break it by itself: the model is left out."""

from __future__ import annotations

import pytest
import redis

from tests.protocol.hunt import SEEDS, hunt_alone, known_seeds
from tests.protocol.mutants import MUTANTS, Mutant


@pytest.mark.parametrize("mutant", [mutant for mutant in MUTANTS if mutant.alone], ids=str)
def test_what_must_hold_does_not_need_the_model(broker_url: str, mutant: Mutant) -> None:
    client, seeds = redis.Redis.from_url(broker_url), known_seeds(alone=True)
    found = hunt_alone(client, mutant, seeds.get(str(mutant), 0))
    client.close()
    assert found is not None, f"{mutant.alone} finds it at none of {SEEDS} seeds"
