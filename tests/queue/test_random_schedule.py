"""A seeded random schedule of every operation, replies lost at random, model and invariants after each step."""

from __future__ import annotations

import pytest
import redis

from tests.protocol.schedule import Schedule
from tests.queue.harness import Shard

SEEDS = 60

__all__ = ["Schedule"]


@pytest.mark.parametrize("seed", range(SEEDS))
def test_nothing_is_lost_or_done_twice_under_a_random_schedule(shard: Shard, seed: int) -> None:
    Schedule(shard, seed).run()


def test_a_seed_draws_the_same_schedule_again(broker_url: str, queue_name: str) -> None:
    client = redis.Redis.from_url(broker_url)
    states = []
    for _ in range(2):
        shard = Shard(client, queue_name)
        schedule = Schedule(shard, 7)
        schedule.run()
        states.append(schedule.ops.state)
        client.unlink(*client.keys(f"{shard.keys.prefix}*"))
    client.close()
    assert states[0] == states[1]
