"""The benchmark of the queue as a command: it starts what it measures, prints figures, and leaves nothing running."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tests.bench.test_figures import KEYS
from tests.e2e.places import ROOT, Family, environment, wait_until


def test_it_prints_one_figure_a_line_and_leaves_nothing(tmp_path: Path) -> None:
    # Too long a path for a socket below it: the broker's is then elsewhere, and must be found.
    folder = tmp_path / ("long-" * 16)
    folder.mkdir()
    done = subprocess.run(
        (sys.executable, "-m", "bench.queue", "--latency", "--requests", "50"),
        cwd=ROOT,
        env=environment(TMPDIR=str(folder)),
        capture_output=True,
        text=True,
        timeout=100,
    )
    # 1: the target was missed, which is no matter on a machine that is busy with tests.
    assert done.returncode in (0, 1), done.stderr
    shown = [json.loads(line) for line in done.stdout.splitlines()]
    assert [list(figure) for figure in shown] == [KEYS] * len(shown)
    assert [figure["name"] for figure in shown] == [
        "queue.1_in_flight.latency_p50",
        "queue.1_in_flight.latency_p99",
        "queue.1_in_flight.rate",
        "queue.broker_round_trip_p50",
    ]
    assert all(figure["value"] > 0 for figure in shown)
    assert shown[0]["target"] == "at most 1.2 ms"
    assert done.returncode == (0 if shown[0]["ok"] else 1)
    assert list(folder.iterdir()) == []


def test_killed_in_the_middle_it_leaves_no_process(tmp_path: Path) -> None:
    with subprocess.Popen(
        (sys.executable, "-m", "bench.queue", "--latency"),
        cwd=ROOT,
        env=environment(TMPDIR=str(tmp_path)),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as process:
        try:
            wait_until("a worker runs", lambda: any(tmp_path.glob("*/data/logs/worker-1.log")), 60)
            family = Family(process.pid)
        finally:
            process.kill()
    assert len(family) > 6
    wait_until("all that it started is gone", family.is_gone, 10)
