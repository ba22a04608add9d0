"""`make bench`: one benchmark that misses its target keeps no other from being run."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.architecture.source_tree import ROOT


def make_bench(folder: Path, queue_code: int, engine_code: int) -> tuple[int, list[str]]:
    """With a Python that only writes down what it is called with: the exit code and the calls."""
    python = folder / "python"
    python.write_text(
        f'#!/bin/sh\necho "$@" >> {folder}/calls\n'
        f'case "$*" in *bench.queue*) exit {queue_code};; *) exit {engine_code};; esac\n'
    )
    python.chmod(0o755)
    env = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    done = subprocess.run(
        ["make", "bench", f"VENV={folder}", "PYTHON=true", "ARGS=--some-option"],
        cwd=ROOT,
        env=env,
        capture_output=True,
        timeout=60,
    )
    return done.returncode, (folder / "calls").read_text().splitlines()


@pytest.mark.parametrize(("queue_code", "engine_code"), [(0, 0), (1, 0), (0, 1), (2, 1)], ids=str)
def test_both_are_measured_and_a_missed_target_is_told_at_the_end(
    queue_code: int, engine_code: int, tmp_path: Path
) -> None:
    code, calls = make_bench(tmp_path, queue_code, engine_code)
    assert calls == ["-m bench.queue --latency", "-m bench.engine --quick"]
    assert (code == 0) == (queue_code == engine_code == 0)
