"""The closed loop: how many are in flight, and what an error does."""

from __future__ import annotations

import asyncio

import pytest

from bench.load import closed_loop


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
