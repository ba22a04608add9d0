"""A short run of the whole, as a user starts it; and whatever ends it, nothing of it is left."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.places import ROOT, Family, environment, wait_until

SECONDS, SEED = 28, 237
KINDS = {
    *("kill_worker", "stop_worker", "drain_worker", "kill_door", "stop_door", "drain_door"),
    *("kill_broker", "stop_broker", "flush_scripts", "kill_clients", "flush_all", "fill_memory"),
    *("cut", "cut_after", "stall", "swallow", "kill_midway"),
}
LAST_LINE = re.compile(
    r"accepted=(\d+) finished=(\d+) error=\d+ cancelled=\d+ wiped=\d+ unknown=\d+ "
    r"lost=0 double=0 stuck=0"
)


@pytest.fixture
def chaos(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        (sys.executable, "-m", "tests.chaos", "--seconds", str(SECONDS), "--seed", str(SEED)),
        cwd=ROOT,
        env=environment(TMPDIR=str(tmp_path)),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    with process:
        yield process
        process.kill()


def test_nothing_is_lost_double_or_stuck(chaos: subprocess.Popen[str], tmp_path: Path) -> None:
    said = chaos.communicate(timeout=SECONDS + 30)[0]
    assert chaos.returncode == 0, said
    *_, faults, last = said.splitlines()
    counts = LAST_LINE.fullmatch(last)
    assert counts, said
    assert int(counts[1]) > int(counts[2]) > 50, said
    struck = dict(re.findall(r"(\w+)=(\d+)", faults))
    assert struck.keys() == KINDS | {"all"}, faults
    assert list(tmp_path.iterdir()) == [], "a good run leaves no folder"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_whatever_ends_it_nothing_of_it_is_left(
    chaos: subprocess.Popen[str], tmp_path: Path, number: signal.Signals
) -> None:
    wait_until("all parts run", lambda: len(Family(chaos.pid)) == 7, 30.0)
    family = Family(chaos.pid)
    os.kill(chaos.pid, number)
    chaos.wait(10)
    wait_until("nothing of it is left", family.is_gone, 5.0)
    if number == signal.SIGINT:
        assert list(tmp_path.iterdir()) == []
