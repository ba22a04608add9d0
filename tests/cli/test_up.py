"""`up`, `down` and their neighbours as commands, with the real broker and the real front door."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from cli.data_folder import DataFolder
from cli.records import Record
from cli.settings import UpSettings
from tests.cli.processes_under_test import all_gone, until

ROOT = Path(__file__).parents[2]


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def two_free_ports() -> int:
    """The first of two neighbours."""
    while True:
        with socket.create_server(("127.0.0.1", 0)) as server:
            first = int(server.getsockname()[1])
            try:
                socket.create_server(("127.0.0.1", first + 1)).close()
            except (OSError, OverflowError):
                continue
            return first


class Place:
    """A folder with a data folder in it, a port, and the commands run there."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        self.data = DataFolder(folder / "data")
        self.out = folder / "up.out"

    def command(self, *words: str) -> list[str]:
        return [sys.executable, "-m", "cli", *words]

    def env(self, **given: str) -> dict[str, str]:
        dropped = ("REDIS_URL", "HOST", "PORT", "WORKERS", "MODEL_DIR", "MODEL_ID", "DATA_DIR")
        kept = {k: v for k, v in os.environ.items() if k not in dropped}
        # No worker: what is tested here is starting, holding and stopping.
        ours = {"PYTHONPATH": str(ROOT), "PORT": str(self.port), "WORKERS": "0"}
        return {**kept, **ours, **given}

    def run(self, *words: str, **env: str) -> tuple[int, str]:
        done = subprocess.run(
            self.command(*words),
            cwd=self.folder,
            env=self.env(**env),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=60,
        )
        return done.returncode, done.stdout

    @contextmanager
    def up(self, *dropped: str, **given: str) -> Iterator[subprocess.Popen[bytes]]:
        """A running `up` in a process group of its own, whose front door answers."""
        env = {name: value for name, value in self.env(**given).items() if name not in dropped}
        with (
            self.out.open("wb") as out,
            subprocess.Popen(
                self.command("up"),
                cwd=self.folder,
                env=env,
                stdout=out,
                stderr=out,
                start_new_session=True,
            ) as process,
        ):
            try:
                until(lambda: "api       ready" in self.said() or process.poll() is not None)
                assert process.poll() is None, self.said()
                yield process
            finally:
                process.kill()
                until(lambda: all_gone(self.pids()))

    def said(self) -> str:
        return self.out.read_text()

    def pids(self) -> list[int]:
        """The processes that are written down: guards and their parts."""
        running = [Record(path).read() for path in self.data.records()]
        return [pid for r in running if r is not None for pid in (r.guard, r.part) if pid]

    def text(self, path: str) -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=10) as reply:
            return str(reply.read(), "utf-8")

    def get(self, path: str) -> object:
        return json.loads(self.text(path))


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def test_up_shows_each_part_and_down_leaves_nothing(place: Place) -> None:
    with place.up() as process:
        assert place.get("/") == {"status": "warming"}
        pids = place.pids()
        assert len(pids) == 4  # broker and front door, a guard each
        code, said = place.run("down")
        assert code == 0, said
        assert said.splitlines()[-1] == "stopped"
        assert process.wait(30) == 0
        assert all_gone(pids)
    lines = place.said().splitlines()
    assert "broker    ready" in lines
    assert f"api       ready  http://127.0.0.1:{place.port}" in lines
    assert lines[-4:] == [
        "api       stopping…",
        "api       stopped",
        "broker    stopping…",
        "broker    stopped",
    ]
    assert place.data.records() == []


def test_down_with_nothing_running_is_no_error(place: Place) -> None:
    assert place.run("down") == (0, "nothing runs\n")
    assert list(place.folder.iterdir()) == []


def test_ctrl_c_of_the_whole_terminal_group_stops_in_order(place: Place) -> None:
    with place.up() as process:
        pids = place.pids()
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does it
        assert process.wait(30) == 0
        assert all_gone(pids)
    said = place.said()
    assert said.index("api       stopped") < said.index("broker    stopping…")
    assert "died" not in said


def test_up_killed_with_sigkill_leaves_nothing_and_the_next_one_starts(place: Place) -> None:
    with place.up() as process:
        pids = place.pids()
        process.kill()
        until(lambda: all_gone(pids))
    with place.up():
        assert place.get("/livez")


def test_a_part_that_is_killed_comes_back(place: Place) -> None:
    with place.up():
        running = Record(place.data.record("api")).read()
        assert running is not None
        assert running.part is not None
        os.kill(running.part, signal.SIGKILL)
        until(lambda: place.said().count("api       ready") == 2)
        assert "api       died (killed by SIGKILL" in place.said()
        assert place.get("/livez")


def test_callers_that_wait_are_held_as_long_as_the_front_door_is_told_to(place: Place) -> None:
    """`up` used to kill it 15 s after the stop, whatever API_DRAIN_S said, and with it every caller."""
    with (
        place.up(API_DRAIN_S="17") as process,
        socket.create_connection(("127.0.0.1", place.port)) as caller,
    ):
        body = json.dumps({"prompt": "x"}).encode()
        head = f"POST /predict HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
        caller.sendall(head.encode() + b"\r\n\r\n" + body)
        until(lambda: "sluice_waiters 1.0" in place.text("/metrics"))
        process.send_signal(signal.SIGTERM)
        caller.settimeout(60)
        # Nobody serves here, so it is told to come back; what matters is that it is told.
        assert caller.recv(64).startswith(b"HTTP/1.1 503 ")
        assert process.wait(30) == 0
    assert "killed" not in place.said()


def test_a_second_up_on_the_same_data_is_refused(place: Place) -> None:
    with place.up() as process:
        code, said = place.run("up", PORT=str(free_port()))
        assert code == 1
        assert f"is in use by pid {process.pid}" in said
        assert place.get("/livez")


def test_a_busy_port_names_its_holder_before_anything_starts(place: Place) -> None:
    with socket.create_server(("127.0.0.1", place.port)):
        code, said = place.run("up")
    assert code == 1
    assert f"port {place.port} is in use by pid {os.getpid()}" in said
    assert "broker    " not in said


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("PORT", "80000"),
        ("WORKERS", "two"),
        ("DRAIN_S", "-1"),
        ("API_DRAIN_S", "601"),
        ("BROKER_MAXMEMORY", "lots"),
        ("BROKER_MAXMEMORY", "0.5gb"),
        ("WORKER_PORT", "70000"),
    ],
)
def test_a_bad_setting_stops_the_start_and_is_named(place: Place, name: str, value: str) -> None:
    code, said = place.run("up", **{name: value})
    assert code == 1
    assert name in said
    assert value in said
    assert "Traceback" not in said


@pytest.mark.parametrize("size", ["0", "64mb", "1GB", "100000K", "2g", "7b"])
def test_sizes_as_the_broker_writes_them_are_taken(size: str) -> None:
    assert UpSettings(_env_file=None, broker_maxmemory=size).broker_maxmemory == size


def test_a_broker_that_never_serves_ends_the_start_with_its_own_words(place: Place) -> None:
    broken = place.data.broker / "appendonlydir" / "appendonly.aof.manifest"
    broken.parent.mkdir(parents=True)
    broken.write_text("no manifest\n")
    code, said = place.run("up")
    assert code == 1
    reason, *lines = said[said.index("sluice: ") :].splitlines()
    assert reason.startswith("sluice: the broker ended 5 times and was never ready (exit code 1")
    assert any("manifest" in line for line in lines), said
    assert "Traceback" not in said
    assert "api       " not in said
    assert place.data.records() == []


def test_a_bad_setting_of_a_part_stops_the_start_and_is_named(place: Place) -> None:
    code, said = place.run("up", LIST_LIMIT="many")
    assert code == 1
    assert "LIST_LIMIT" in said.splitlines()[-1]
    assert place.data.records() == []


def test_a_model_dir_without_a_model_stops_the_start_and_is_named(place: Place) -> None:
    code, said = place.run("up", MODEL_DIR="/no/such/model", WORKERS="1")
    assert code == 1
    assert "MODEL_DIR=/no/such/model holds no model" in said.splitlines()[-1]
    assert place.data.records() == []


def test_a_broker_of_ones_own_is_used_and_none_is_started(place: Place, broker_url: str) -> None:
    with place.up(REDIS_URL=broker_url):
        assert "broker    external" in place.said()
        assert len(place.pids()) == 2  # the front door alone
        assert broker_url not in place.said()  # it may hold a password


def test_two_workers_are_seen_on_a_port_each(place: Place) -> None:
    """Both were given the same one, and the second died of it."""
    first = two_free_ports()

    def state(port: int) -> str:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/livez", timeout=10) as reply:
                return str(reply.read(), "utf-8")
        except OSError:
            return "not there yet"

    with place.up(WORKERS="2", ENGINE="simulated", WORKER_PORT=str(first)):
        until(lambda: {state(first), state(first + 1)} == {"ready\n"})
        assert place.data.records() == [
            place.data.record(name) for name in ("api", "broker", "worker-1", "worker-2")
        ]


def test_settings_from_dot_env_reach_all_parts(place: Place) -> None:
    (place.folder / ".env").write_text(f"PORT={place.port}\nLOG_FORMAT=json\n")
    with place.up("PORT"):
        assert place.get("/livez")
    first = place.data.log("api").read_text().splitlines()[0]
    assert json.loads(first)["level"] == "info"


def test_logs_shows_what_the_parts_have_written(place: Place) -> None:
    assert place.run("logs", "--no-follow")[0] == 1  # nothing has run here
    with place.up():
        pass
    code, said = place.run("logs", "--no-follow", "broker")
    assert code == 0
    assert "Ready to accept connections" in said
    assert all(line.startswith("broker    ") for line in said.splitlines())
