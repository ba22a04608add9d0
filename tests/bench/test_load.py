"""The closed loop: how many are in flight, and what an error does."""

from __future__ import annotations

import asyncio

import pytest

from bench.load import Run, closed_loop, for_seconds, joined


async def test_so_many_are_in_flight_and_all_are_answered() -> None:
    in_flight, most = 0, 0

    async def ask(item: int) -> int:
        nonlocal in_flight, most
        in_flight += 1
        most = max(most, in_flight)
        await asyncio.sleep(0.001)
        in_flight -= 1
        return item

    run = await closed_loop(range(50), 8, ask)
    assert most == 8
    assert sorted(run.replies) == list(range(50))
    assert len(run.latencies_s) == 50
    assert all(0 < seconds <= run.seconds for seconds in run.latencies_s)
    assert run.per_s == pytest.approx(50 / run.seconds)


async def test_the_first_error_ends_the_run_as_it_is() -> None:
    asked = []

    async def ask(item: int) -> None:
        asked.append(item)
        await asyncio.sleep(0.001)
        if item == 3:
            raise ValueError("item 3")

    with pytest.raises(ValueError, match="item 3"):
        await closed_loop(range(1000), 4, ask)
    assert len(asked) < 20


def test_turns_are_joined_by_their_own_seconds_and_not_the_time_between() -> None:
    run = joined([Run(2.0, [0.1, 0.2], [1, 2]), Run(3.0, [0.3, 0.4, 0.5], [3, 4, 5])])
    assert run == Run(5.0, [0.1, 0.2, 0.3, 0.4, 0.5], [1, 2, 3, 4, 5])
    assert run.per_s == 1.0


async def test_a_turn_by_time_ends_for_every_client_at_once() -> None:
    async def ask(item: int) -> int:
        await asyncio.sleep(0.001)
        return item

    run = await closed_loop(for_seconds(0.1), 4, ask)
    assert 0.1 <= run.seconds < 1
    assert sorted(run.replies) == list(range(len(run.replies)))
    assert len(run.replies) > 4
