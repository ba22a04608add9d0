"""The embedded broker with the real server: options, one owner, and nothing lost or left when it is
killed.
"""

from __future__ import annotations

import os
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from cli.broker import SOCKET_PATH_BYTES, Broker, socket_path
from cli.data_folder import DataFolder, FolderInUse
from cli.records import Record, end_leftovers
from tests.cli.processes_under_test import all_gone, until

# An owner as `up` is one, less all the rest: takes the folder and starts the server under a guard.
OWNER = """
import subprocess, sys, time
from pathlib import Path
from cli.broker import Broker, socket_path
from cli.data_folder import DataFolder
with DataFolder(Path(sys.argv[1])) as folder:
    broker = Broker(folder.broker, socket_path(folder.broker))
    guard = [sys.executable, "-m", "cli.guard", "--name", "broker", "--log", str(folder.log("broker")),
             "--record", str(folder.record("broker")), "--", *broker.command()]
    subprocess.Popen(guard, stdin=subprocess.PIPE, start_new_session=True)
    time.sleep(600)
"""


def ask(broker: Broker, *words: str) -> bytes:
    """One command, one short reply, without a client library."""
    parts = [f"${len(w.encode())}\r\n{w}\r\n" for w in words]
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        client.settimeout(5)
        client.connect(str(broker.socket))
        client.sendall(f"*{len(words)}\r\n{''.join(parts)}".encode())
        return client.recv(4096)


def option(broker: Broker, name: str) -> str:
    return ask(broker, "CONFIG", "GET", name).decode().split("\r\n")[-2]


@contextmanager
def serving(broker: Broker) -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(broker.command(), stdout=subprocess.DEVNULL) as server:
        try:
            until(broker.answers)
            yield server
        finally:
            server.terminate()


@contextmanager
def owner_of(data: Path) -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-c", OWNER, str(data)]) as owner:
        try:
            yield owner
        finally:
            owner.kill()


def broker_in(data: Path) -> Broker:
    folder = DataFolder(data)
    return Broker(folder.broker, socket_path(folder.broker))


def test_it_keeps_a_log_never_evicts_and_opens_no_port(tmp_path: Path) -> None:
    broker = broker_in(tmp_path)
    broker.folder.mkdir()
    with serving(broker) as server:
        assert option(broker, "appendonly") == "yes"
        assert option(broker, "appendfsync") == "everysec"
        assert option(broker, "maxmemory-policy") == "noeviction"
        assert option(broker, "port") == "0"
        assert stat.S_IMODE(broker.socket.stat().st_mode) == 0o700
        assert not listens_on_tcp(server.pid)


def listens_on_tcp(pid: int) -> bool:
    import psutil

    return bool(psutil.Process(pid).net_connections("inet"))


def test_durability_aof_syncs_every_write(tmp_path: Path) -> None:
    broker = Broker(tmp_path, tmp_path / "s", durable=True)
    with serving(broker):
        assert option(broker, "appendfsync") == "always"


def test_the_folder_is_closed_to_others(tmp_path: Path) -> None:
    with DataFolder(tmp_path / "data") as folder:
        for path in (folder.path, folder.broker, folder.logs, folder.run):
            assert stat.S_IMODE(path.stat().st_mode) == 0o700


def test_a_second_owner_is_refused_by_name_and_a_later_one_is_not(tmp_path: Path) -> None:
    with DataFolder(tmp_path / "data") as folder:
        owner = folder.owner()
        assert owner is not None
        assert owner.pid == os.getpid()
        with pytest.raises(FolderInUse, match=f"is in use by pid {os.getpid()}"):
            DataFolder(tmp_path / "data").__enter__()
    assert DataFolder(tmp_path / "data").owner() is None
    with DataFolder(tmp_path / "data") as folder:
        assert folder.owner() is not None


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(FolderInUse, match=f"DATA_DIR={tmp_path}/file cannot be used"):
        DataFolder(tmp_path / "file").__enter__()


def test_sigkill_of_the_owner_leaves_no_server_and_the_data_is_there_again(tmp_path: Path) -> None:
    broker = broker_in(tmp_path)
    with owner_of(tmp_path) as owner:
        until(broker.answers)
        running = Record(DataFolder(tmp_path).record("broker")).read()
        assert running is not None
        assert running.part is not None
        assert ask(broker, "SET", "kept", "yes") == b"+OK\r\n"
        owner.kill()
        until(lambda: all_gone([running.guard, running.part or 0]))
    with serving(broker):
        assert ask(broker, "GET", "kept") == b"$3\r\nyes\r\n"


def test_a_server_that_outlived_its_guard_is_ended_before_the_next(tmp_path: Path) -> None:
    broker = broker_in(tmp_path)
    broker.folder.mkdir()
    with serving(broker) as stale:
        record = Record(DataFolder(tmp_path).record("broker"))
        record.write(stale.pid, None)
        assert ask(broker, "SET", "kept", "yes") == b"+OK\r\n"
        assert end_leftovers([record.path], grace_s=0.0) == ["broker"]
        assert stale.wait(5) == -signal.SIGKILL
    with serving(broker):
        assert ask(broker, "GET", "kept") == b"$3\r\nyes\r\n"


def test_a_path_too_long_for_a_socket_gives_a_private_place(tmp_path: Path) -> None:
    short = tmp_path / "d"
    assert socket_path(short).parent == short
    long = tmp_path / ("d" * SOCKET_PATH_BYTES)
    long.mkdir()
    path = socket_path(long)
    assert len(str(path).encode()) <= SOCKET_PATH_BYTES
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    broker = Broker(long, path)
    with serving(broker):
        assert ask(broker, "PING") == b"+PONG\r\n"
    path.parent.rmdir()


def test_a_server_that_is_not_there_does_not_answer(tmp_path: Path) -> None:
    began = time.monotonic()
    assert not Broker(tmp_path, tmp_path / "none").answers()
    assert time.monotonic() - began < 1.0
