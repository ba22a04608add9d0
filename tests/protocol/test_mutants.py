"""Without any one of its guards a script is told apart from the model, or breaks what must hold."""

from __future__ import annotations

import pytest
import redis

from tests.protocol.hunt import SEEDS, hunt, known_seeds
from tests.protocol.mutants import MUTANTS

CHUNK = 20


@pytest.mark.parametrize("first", range(0, len(MUTANTS), CHUNK))
def test_a_script_without_one_of_its_guards_is_found_out(broker_url: str, first: int) -> None:
    client, seeds = redis.Redis.from_url(broker_url), known_seeds()
    alive = [
        str(mutant)
        for mutant in MUTANTS[first : first + CHUNK]
        if hunt(client, mutant, seeds.get(str(mutant), 0)) is None
    ]
    client.close()
    assert not alive, f"none of {SEEDS} seeds finds them"
