"""The cause that vLLM's processes wrote, out of what they wrote around it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from worker.engines.vllm_log import PREFIX, ErrorLog, sweep_leftovers

pytestmark = pytest.mark.filterwarnings("ignore")  # vLLM warns while it is imported

WRITTEN = """WorkerProc failed to start.
Traceback (most recent call last):
  File "loader.py", line 65, in get_model_loader
    raise ValueError(f"Load format is not supported")
ValueError: Load format `awq` is not supported
EngineCore failed to start.
Traceback (most recent call last):
RuntimeError: Worker failed with error 'Load format `awq` is not supported', please check
"""


@pytest.fixture
def log_and_file() -> tuple[ErrorLog, Path]:
    pytest.importorskip("vllm")
    log = ErrorLog()
    config = json.loads(Path(log.config().pylogging_config_file).read_text())
    return log, Path(config["handlers"]["errors"]["filename"])


def test_the_innermost_cause_is_told(log_and_file: tuple[ErrorLog, Path]) -> None:
    log, file = log_and_file
    assert log.cause() is None
    file.write_text(WRITTEN)
    assert log.cause() == "ValueError: Load format `awq` is not supported"
    log.close()
    assert not file.parent.exists()
    assert log.cause() is None


def test_what_was_before_is_no_cause_of_what_comes(log_and_file: tuple[ErrorLog, Path]) -> None:
    log, file = log_and_file
    file.write_text(WRITTEN)
    log.forget()
    assert log.cause() is None
    with file.open("a") as more:
        more.write("torch.OutOfMemoryError: nothing left\n")
    assert log.cause() == "OutOfMemoryError: nothing left"
    log.close()


def test_an_engine_that_never_began_leaves_nothing() -> None:
    log = ErrorLog()
    log.forget()
    assert log.cause() is None
    log.close()


def test_what_a_process_that_had_to_exit_at_once_left_goes_at_the_next_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    names = (f"{PREFIX}{gone.pid}-a", f"{PREFIX}{os.getpid()}-b", f"{PREFIX}x-c", "other-1-d")
    for name in names:
        (tmp_path / name / "inside").mkdir(parents=True)
    sweep_leftovers()
    assert {path.name for path in tmp_path.iterdir()} == set(names[1:])


def test_the_folder_tells_whose_it_is(log_and_file: tuple[ErrorLog, Path]) -> None:
    log, file = log_and_file
    assert file.parent.name.startswith(f"{PREFIX}{os.getpid()}-")
    log.close()
