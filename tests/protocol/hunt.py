"""Finds out mutants: `python -m tests.protocol.hunt` writes `kills.json`, which seed shows each of them the soonest."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import msgspec
import redis

from tests.protocol.mutants import FOCUS, MUTANTS, Mutant
from tests.protocol.schedule import Schedule
from tests.protocol.server import client_of_own_server
from tests.queue.harness import Shard

KILLS = Path(__file__).with_name("kills.json")
SEEDS = 60


class Kill(msgspec.Struct, frozen=True):
    """`check`: an invariant's number, `reply` or `state` where it is not the model's, `error` of the script."""

    seed: int
    check: str
    n_calls: int


def kill(client: Any, mutant: Mutant, seed: int) -> Kill | None:
    """Runs one seed against a mutant until something is wrong."""
    shard = Shard(client, f"hunt-{seed}")
    shard.advance(1)
    try:
        schedule = Schedule(shard, seed, FOCUS[mutant.script], scripts=mutant.scripts())
        try:
            schedule.run()
        except (AssertionError, redis.ResponseError) as error:
            return Kill(seed, _check_of(error), schedule.ops.n_calls)
        return None
    finally:
        client.unlink(*client.keys(f"{shard.keys.prefix}*"))


def hunt(client: Any, mutant: Mutant, first: int = 0) -> Kill | None:
    """The first seed that shows it, `first` tried before the others."""
    seeds = (first, *(seed for seed in range(SEEDS) if seed != first))
    return next((found for seed in seeds if (found := kill(client, mutant, seed))), None)


def known_seeds() -> dict[str, int]:
    return {name: seed for name, (seed, _) in json.loads(KILLS.read_text("utf-8")).items()}


def _check_of(error: Exception) -> str:
    if isinstance(error, redis.ResponseError):
        return "error"
    word = str(error).split(" ", 1)[0]
    if word.startswith("S") and word[1:].isdigit():
        return word
    return "reply" if " replied " in str(error).split("\n", 1)[0] else "state"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.protocol.hunt", description=__doc__)
    parser.add_argument("--tries", type=int, default=8, help="seeds to choose the quickest of")
    tries = parser.parse_args().tries
    kills, alive = {}, []
    with client_of_own_server() as client:
        for mutant in MUTANTS:
            found = [k for seed in range(tries) if (k := kill(client, mutant, seed))]
            best = min(found, key=lambda k: k.n_calls) if found else hunt(client, mutant)
            if best is None:
                alive.append(str(mutant))
            else:
                kills[str(mutant)] = [best.seed, best.check]
    KILLS.write_text(json.dumps(kills, indent=1, ensure_ascii=False) + "\n", "utf-8")
    print(f"mutants={len(MUTANTS)} killed={len(kills)}", *alive, sep="\n")


if __name__ == "__main__":
    main()
