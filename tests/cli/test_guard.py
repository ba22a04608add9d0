"""The guard with real processes: whatever dies first, nothing of a part is left."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cli.guard import RotatingLog
from cli.records import Record, alive_of, end_leftovers
from tests.cli.processes_under_test import all_gone, family, family_command, until

# Like `up`: holds the write end of the guard's pipe, and does nothing else.
OWNER = """
import subprocess, sys, time
guard = subprocess.Popen(sys.argv[1:], stdin=subprocess.PIPE, start_new_session=True)
print(guard.pid, flush=True)
time.sleep(600)
"""


def guard_command(folder: Path, *command: str) -> list[str]:
    return [
        *(sys.executable, "-m", "cli.guard", "--name", "part"),
        *("--log", str(folder / "part.log"), "--record", str(folder / "part.json")),
        *("--", *command),
    ]


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A guard over a family of three processes."""
    process = subprocess.Popen(
        guard_command(tmp_path, *family_command(tmp_path)),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    with process:
        yield process
        process.kill()


def last_event(process: subprocess.Popen[str]) -> dict[str, object]:
    assert process.stdout is not None
    events = [json.loads(line) for line in process.stdout]
    assert [event["event"] for event in events] == ["started", "exit"]
    return dict(events[-1])


def test_sigkill_of_the_part_leaves_no_child_and_is_told(
    guarded: subprocess.Popen[str], tmp_path: Path
) -> None:
    pids = family(tmp_path)
    os.kill(pids["main"], signal.SIGKILL)
    assert until(lambda: all_gone(list(pids.values()))) < 2.0
    event = last_event(guarded)
    assert event == {"event": "exit", "code": None, "signal": "SIGKILL", "last": "family is up"}
    assert not (tmp_path / "part.json").exists()


def test_sigkill_of_the_owner_leaves_nothing(tmp_path: Path) -> None:
    command = guard_command(tmp_path, *family_command(tmp_path))
    with subprocess.Popen(
        [sys.executable, "-c", OWNER, *command], stdout=subprocess.PIPE, text=True
    ) as owner:
        assert owner.stdout is not None
        guard = int(owner.stdout.readline())
        pids = family(tmp_path)
        owner.kill()
        until(lambda: all_gone([guard, *pids.values()]))
    assert not (tmp_path / "part.json").exists()


def test_sigkill_of_the_guard_ends_the_part_and_the_record_finds_the_rest(
    guarded: subprocess.Popen[str], tmp_path: Path
) -> None:
    pids = family(tmp_path)
    record = Record(tmp_path / "part.json")
    running = record.read()
    assert running is not None
    assert running.part == pids["main"]
    guarded.kill()
    guarded.wait()
    until(lambda: all_gone([pids["main"]]))
    assert alive_of(running) == [
        pids["child"]
    ]  # it ignores SIGTERM, and nobody was left to kill it

    assert end_leftovers([record.path], grace_s=0.0) == ["part"]
    assert all_gone([pids["child"]])
    assert not record.path.exists()
    os.kill(pids["stray"], signal.SIGKILL)  # it left the group: out of reach once its guard is gone


def test_leftovers_are_never_looked_for_under_a_reused_process_id(tmp_path: Path) -> None:
    record = Record(tmp_path / "old.json")
    with subprocess.Popen(["sleep", "600"], start_new_session=True) as stranger:
        record.write(stranger.pid, stranger.pid)
        text = json.loads(record.path.read_text())
        text["guard_mark"] = text["part_mark"] = text["part_mark"] + "9"
        record.path.write_text(json.dumps(text))
        assert end_leftovers([record.path], grace_s=0.0) == []
        assert stranger.poll() is None
        assert not record.path.exists()
        stranger.kill()


def test_stop_lets_the_part_end_by_itself_and_takes_its_code(tmp_path: Path) -> None:
    script = "trap 'echo drained; exit 3' TERM; echo up; while :; do sleep 0.05; done"
    with subprocess.Popen(
        guard_command(tmp_path, "sh", "-c", script),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as guard:
        assert guard.stdin is not None
        until(lambda: "up" in log_text(tmp_path))
        guard.stdin.write("stop 20\n")
        guard.stdin.flush()
        event = last_event(guard)
    assert (event["code"], event["last"]) == (3, "drained")
    assert guard.returncode == 3


def test_stop_kills_a_part_that_outstays_its_grace(tmp_path: Path) -> None:
    script = "trap '' TERM; echo up; while :; do sleep 0.05; done"
    with subprocess.Popen(
        guard_command(tmp_path, "sh", "-c", script),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as guard:
        assert guard.stdin is not None
        until(lambda: "up" in log_text(tmp_path))
        guard.stdin.write("stop 0.3\n")
        guard.stdin.flush()
        assert last_event(guard)["signal"] == "SIGKILL"


def test_a_command_that_does_not_exist_is_told_by_name(tmp_path: Path) -> None:
    done = subprocess.run(
        guard_command(tmp_path, "/no/such/program"),
        capture_output=True,
        text=True,
        stdin=subprocess.PIPE,
    )
    event = json.loads(done.stdout)
    assert event["event"] == "exit"
    assert "/no/such/program" in event["last"]
    assert done.returncode == 127


def log_text(folder: Path) -> str:
    path = folder / "part.log"
    return path.read_text() if path.exists() else ""


def test_a_full_log_is_turned_over_and_the_oldest_goes(tmp_path: Path) -> None:
    log = RotatingLog(tmp_path / "x.log", limit_bytes=10, files=3)
    for number in range(5):
        log.write(f"line {number}\n".encode())
    log.close()
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["x.log", "x.log.1", "x.log.2"]
    assert [(tmp_path / name).read_text() for name in names] == ["line 4\n", "line 3\n", "line 2\n"]
