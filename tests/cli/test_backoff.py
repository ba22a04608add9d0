"""Waits between restarts: grow from half a second to half a minute, jittered, and forget after a
healthy minute.
"""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cli.backoff import FIRST_S, HEALTHY_S, LONGEST_S, Backoff


def test_waits_double_up_to_half_a_minute() -> None:
    backoff, waits = Backoff(), []
    for _ in range(9):
        backoff, wait_s = backoff.after(lived_s=1.0, chance=1.0)
        waits.append(wait_s)
    assert waits == [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0, 30.0]


def test_a_healthy_minute_is_a_clean_sheet() -> None:
    backoff, wait_s = Backoff(deaths=7).after(lived_s=HEALTHY_S, chance=0.5)
    assert (backoff, wait_s) == (Backoff(deaths=1), FIRST_S)


@given(
    deaths=st.integers(0, 100_000),
    lived_s=st.floats(0, 1e6),
    chance=st.floats(0, 1, exclude_max=True),
)
def test_a_wait_is_always_within_its_bounds(deaths: int, lived_s: float, chance: float) -> None:
    after, wait_s = Backoff(deaths).after(lived_s, chance)
    assert FIRST_S <= wait_s <= LONGEST_S
    assert after.deaths >= 1
