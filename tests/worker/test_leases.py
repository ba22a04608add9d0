"""The stall watch, with the clock as an argument."""

from __future__ import annotations

from worker.leases import StallWatch


def test_an_idle_engine_is_never_stalled() -> None:
    watch = StallWatch(60)
    assert not watch.is_stalled(0, 5, has_running=False)
    assert not watch.is_stalled(1_000, 5, has_running=False)


def test_running_without_progress_is_a_stall_after_the_limit() -> None:
    watch = StallWatch(60)
    assert not watch.is_stalled(0, 5, has_running=True)
    assert not watch.is_stalled(59.9, 5, has_running=True)
    assert watch.is_stalled(60, 5, has_running=True)
    assert not watch.is_stalled(61, 6, has_running=True)
    assert not watch.is_stalled(120, 6, has_running=True)


def test_waiting_idle_does_not_count_towards_the_limit() -> None:
    watch = StallWatch(60)
    watch.is_stalled(0, 5, has_running=False)
    assert not watch.is_stalled(500, 5, has_running=False)
    assert not watch.is_stalled(559, 5, has_running=True)
