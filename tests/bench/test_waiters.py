"""Callers that wait at one front door, a few of them, on a real service; and what misses a target."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from bench import waiters
from bench.stack import StackError
from bench.waiters import MIB, Held
from tests.e2e.places import ROOT, environment


def missed(held: Held, answered: int) -> list[str]:
    shown = waiters.shown(Held(60 * MIB, 2), held, answered, 5000)
    return [figure.name for figure in shown if figure.ok is False]


def test_each_target_is_missed_by_itself() -> None:
    assert missed(Held(399 * MIB, 10), 5000) == []
    assert missed(Held(401 * MIB, 10), 5000) == ["waiters.front_door_rss"]
    assert missed(Held(399 * MIB, 11), 5000) == ["waiters.broker_connections"]
    assert missed(Held(399 * MIB, 10), 4999) == ["waiters.answered"]


def test_all_wait_at_once_and_all_are_answered(tmp_path: Path) -> None:
    done = subprocess.run(
        (sys.executable, "-m", "bench.waiters", "--callers", "300"),
        cwd=ROOT,
        env=environment(TMPDIR=str(tmp_path)),
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    shown = {
        figure["name"]: figure["value"] for figure in map(json.loads, done.stdout.splitlines())
    }
    assert shown["waiters.answered"] == 300
    assert 1 <= shown["waiters.broker_connections"] <= 10
    assert shown["waiters.front_door_rss"] > shown["waiters.front_door_rss_before"]
    assert list(tmp_path.iterdir()) == []


def test_more_callers_than_files_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiters, "raise_open_files", lambda: 1024)
    with pytest.raises(StackError, match="too few open files"):
        waiters.run(5000, tmp_path)
