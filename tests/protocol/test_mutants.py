"""Without any one of its guards a script is told apart from the model, or breaks what must hold; with it, it is not."""

from __future__ import annotations

import pytest
import redis

from tests.protocol.hunt import SEEDS, control, hunt, known_seeds
from tests.protocol.mutants import MUTANTS

CHUNK = 20


@pytest.mark.parametrize("first", range(0, len(MUTANTS), CHUNK))
def test_a_script_is_found_out_without_one_of_its_guards_and_passes_the_same_with_it(
    broker_url: str, first: int
) -> None:
    client, seeds = redis.Redis.from_url(broker_url), known_seeds()
    alive, reach = [], dict[tuple[str, int], int]()
    for mutant in MUTANTS[first : first + CHUNK]:
        found = hunt(client, mutant, seeds.get(str(mutant), 0))
        if found is None:
            alive.append(str(mutant))
        else:
            way = mutant.script, found.seed
            reach[way] = max(reach.get(way, 0), found.n_calls)
    for (script, seed), n_calls in reach.items():
        control(client, script, seed, n_calls)
    client.close()
    assert not alive, f"none of {SEEDS} seeds finds them"
