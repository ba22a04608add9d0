"""Finds out mutants: `python -m tests.protocol.hunt` writes `kills.json`, which seed shows each of them the soonest."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import redis

from tests.protocol.mutants import FOCUS, MUTANTS, Mutant
from tests.protocol.schedule import Schedule
from tests.protocol.server import client_of_own_server
from tests.queue.harness import Shard

KILLS = Path(__file__).with_name("kills.json")
SEEDS = 200


class Kill(msgspec.Struct, frozen=True):
    """`check`: an invariant's number, `reply` or `state` where it is not the model's, `error` of the script."""

    seed: int
    check: str
    n_calls: int


def kill(client: Any, mutant: Mutant, seed: int, *, is_compared: bool = True) -> Kill | None:
    """Runs one seed against a mutant until something is wrong; `is_compared` False leaves the model out."""
    shard = Shard(client, f"hunt-{seed}")
    shard.advance(1)
    try:
        schedule = Schedule(
            shard, seed, FOCUS[mutant.script], scripts=mutant.scripts(), is_compared=is_compared
        )
        try:
            schedule.run()
        except (AssertionError, redis.ResponseError, msgspec.DecodeError) as error:
            return Kill(seed, _check_of(error), schedule.ops.n_calls)
        return None
    finally:
        client.unlink(*client.keys(f"{shard.keys.prefix}*"))


def control(client: Any, script: str, seed: int, n_calls: int) -> None:
    """The same schedule with the scripts as they are, as far as a mutant of `script` got. Raises what it shows."""
    shard = Shard(client, f"control-{seed}")
    shard.advance(1)
    try:
        schedule = Schedule(shard, seed, FOCUS[script])
        schedule.run(n_calls=n_calls)
    finally:
        client.unlink(*client.keys(f"{shard.keys.prefix}*"))


def hunt(client: Any, mutant: Mutant, first: int = 0) -> Kill | None:
    """The first seed that shows it, `first` tried before the others."""
    return next((found for seed in _seeds(first) if (found := kill(client, mutant, seed))), None)


def hunt_alone(client: Any, mutant: Mutant, first: int = 0) -> Kill | None:
    """The first seed at which `mutant.alone` finds it by itself."""
    kills = (kill(client, mutant, seed, is_compared=False) for seed in _seeds(first))
    return next((found for found in kills if found and found.check == mutant.alone), None)


def _seeds(first: int) -> Iterator[int]:
    yield first
    yield from (seed for seed in range(SEEDS) if seed != first)


def known_seeds(*, alone: bool = False) -> dict[str, int]:
    """By mutant; `alone`: of those that are found out without the model, the seed for that."""
    rows = json.loads(KILLS.read_text("utf-8"))
    place = 2 if alone else 0
    return {name: row[place] for name, row in rows.items() if len(row) > place}


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
    parser.add_argument("--only", nargs="+", metavar="SCRIPT", help="the mutants of these alone")
    options = parser.parse_args()
    tries, only = options.tries, options.only or FOCUS
    known = json.loads(KILLS.read_text("utf-8"))
    kills: dict[str, list[Any]] = {}
    alive: list[str] = []
    with client_of_own_server() as client:
        for mutant in MUTANTS:
            if mutant.script not in only:
                kills |= {name: known[name] for name in (str(mutant),) if name in known}
                continue
            found = [k for seed in range(tries) if (k := kill(client, mutant, seed))]
            best = min(found, key=lambda k: k.n_calls) if found else hunt(client, mutant)
            if best is None:
                alive.append(str(mutant))
            else:
                kills[str(mutant)] = [best.seed, best.check]
                if mutant.alone and (by_itself := hunt_alone(client, mutant)):
                    kills[str(mutant)].append(by_itself.seed)
    KILLS.write_text(json.dumps(kills, indent=1, ensure_ascii=False) + "\n", "utf-8")
    print(f"mutants={len(MUTANTS)} killed={len(kills)}", *alive, sep="\n")


if __name__ == "__main__":
    main()
