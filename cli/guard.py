"""Holds one part of the service and never lets it outlive its owner: `python -m cli.guard --name N
--log F -- command…`

Standard input is the owner's pipe: its end means that the owner is gone. Standard output tells the
owner what happens, one JSON object a line. Knows neither what the part does nor whether it is
started again.

The guard adopts every orphan below it, so a part that dies leaves nothing: the rest of its group
and all adopted processes are ended before the guard reports the end.
"""

from __future__ import annotations

import argparse
import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

from cli import processes
from cli.records import Record

ORPHAN_GRACE_S = 1.5  # between SIGTERM and SIGKILL once the owner is gone
LEFTOVER_GRACE_S = 0.3  # the same for what a dead part left behind
KILL_LIMIT_S = 5.0  # a process in uninterruptible sleep must not hold the guard for ever
LOG_BYTES = 10 * 1024 * 1024
LOG_FILES = 3
LAST_LINE_BYTES = 2000


class RotatingLog:
    """Appends bytes to a file; a full one becomes `.1`, that one `.2`, and so on."""

    def __init__(self, path: Path, limit_bytes: int = LOG_BYTES, files: int = LOG_FILES) -> None:
        self._path = path
        self._limit = limit_bytes
        self._files = files
        self._open()

    def _open(self) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._file: BinaryIO = self._path.open("ab", buffering=0)
        self._size = self._file.tell()

    def write(self, data: bytes) -> None:
        try:
            if self._size + len(data) > self._limit and self._size:
                self._rotate()
            self._file.write(data)
        except OSError:
            pass  # a full disk must not stop the part: its lines are lost, its work is not
        self._size += len(data)

    def close(self) -> None:
        self._file.close()

    def _rotate(self) -> None:
        self.close()
        for number in range(self._files - 1, 0, -1):
            older = self._path.with_name(f"{self._path.name}.{number}")
            newer = (
                self._path
                if number == 1
                else self._path.with_name(f"{self._path.name}.{number - 1}")
            )
            if newer.exists():
                newer.replace(older)
        self._open()


class Guard:
    """One part from start to end. `run` returns when nothing of it is left."""

    def __init__(
        self, command: Sequence[str], log: RotatingLog, record: Path, echo: bool = False
    ) -> None:
        """`echo` tells the owner each line of output too."""
        self._command = command
        self._log = log
        self._record = Record(record)
        self._echo = echo
        self._partial = b""
        self._last_line = b""
        self._orders = b""
        self._kill_at: float | None = None
        self._selector = selectors.DefaultSelector()

    def run(self) -> int:
        processes.adopt_orphans()
        wake = self._catch_signals()
        self._record.write(os.getpid(), None)
        try:
            self._part = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=_prepare_child,
            )
        except OSError as error:
            self._record.remove()
            self._tell(event="exit", code=127, signal=None, last=f"{self._command[0]}: {error}")
            return 127
        self._record.write(os.getpid(), self._part.pid)
        self._tell(event="started", pid=self._part.pid)
        assert self._part.stdout is not None
        self._output = self._part.stdout.fileno()
        os.set_blocking(self._output, False)
        self._selector.register(self._output, selectors.EVENT_READ, self._read_output)
        self._selector.register(sys.stdin.fileno(), selectors.EVENT_READ, self._read_orders)
        self._selector.register(wake, selectors.EVENT_READ, lambda: os.read(wake, 512))

        code = self._watch()
        self._end_leftovers()
        self._read_output()
        self._record.remove()
        self._tell(
            event="exit",
            code=code if code >= 0 else None,
            signal=signal.Signals(-code).name if code < 0 else None,
            last=(self._partial.strip() or self._last_line).decode(errors="replace"),
        )
        return code if code >= 0 else 128 - code

    def _catch_signals(self) -> int:
        """The read end of a pipe that wakes the selector at each signal."""
        wake, write = os.pipe()
        os.set_blocking(write, False)
        signal.set_wakeup_fd(write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGTERM, lambda *_: self._stop(ORPHAN_GRACE_S))
        for ignored in (signal.SIGINT, signal.SIGHUP):
            signal.signal(ignored, signal.SIG_IGN)
        return wake

    def _watch(self) -> int:
        """Waits for the end of the part's main process; negative is the number of a signal."""
        while True:
            wait_s = None if self._kill_at is None else max(0.0, self._kill_at - time.monotonic())
            for key, _ in self._selector.select(wait_s):
                key.data()
            if self._kill_at is not None and time.monotonic() >= self._kill_at:
                self._kill_at = None
                processes.send_group(self._part.pid, signal.SIGKILL)
            self._reap()
            if self._part.returncode is not None:
                return self._part.returncode

    def _reap(self) -> None:
        """Collects the part and adopted children that ended; none stays a zombie."""
        self._part.poll()
        while hasattr(os, "waitid"):  # not on macOS, where nothing is adopted either
            try:
                # Only what has ended: the part's own state is read through Popen, which must see it
                # first.
                done = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return
            if done is None:
                return
            if done.si_pid == self._part.pid and self._part.returncode is None:
                self._part.poll()
            else:
                os.waitpid(done.si_pid, os.WNOHANG)

    def _read_output(self) -> None:
        while True:
            try:
                data = os.read(self._output, 65536)
            except BlockingIOError:
                return
            if not data:
                if self._output in self._selector.get_map():
                    self._selector.unregister(self._output)
                return
            self._log.write(data)
            *lines, self._partial = (self._partial + data).split(b"\n")
            self._partial = self._partial[-LAST_LINE_BYTES:]
            for line in filter(None, map(bytes.strip, lines)):
                self._last_line = line[-LAST_LINE_BYTES:]
                if self._echo:
                    self._tell(event="line", text=self._last_line.decode(errors="replace"))

    def _read_orders(self) -> None:
        data = os.read(sys.stdin.fileno(), 4096)
        if not data:
            self._selector.unregister(sys.stdin.fileno())
            self._stop(ORPHAN_GRACE_S)
            return
        self._orders += data
        *lines, self._orders = self._orders.split(b"\n")
        for line in lines:
            word, _, number = line.decode().partition(" ")
            if word == "stop":
                self._stop(float(number))
            elif word == "kill":
                self._stop(0.0)

    def _stop(self, grace_s: float) -> None:
        """Asks the part's main process to end, and sets when the group is killed. May only shorten
        the time.
        """
        kill_at = time.monotonic() + grace_s
        if self._kill_at is None:
            # To the main process alone: the engine below it must live while the part drains.
            processes.send([self._part.pid], signal.SIGTERM)
            self._kill_at = kill_at
        self._kill_at = min(self._kill_at, kill_at)

    def _end_leftovers(self) -> None:
        """Ends the rest of the group and whatever was adopted, first politely."""
        began = time.monotonic()
        number = signal.SIGTERM
        while time.monotonic() - began < KILL_LIMIT_S:
            self._reap()
            self._read_output()
            left = set(processes.descendants(os.getpid()))
            left |= {p.pid for p in processes.group_members(self._part.pid)}
            if not left:
                return
            if number == signal.SIGTERM or time.monotonic() - began > LEFTOVER_GRACE_S:
                processes.send(left, number)
                number = signal.SIGKILL
            time.sleep(0.02)

    def _tell(self, **event: object) -> None:
        try:
            sys.stdout.write(json.dumps(event) + "\n")
            sys.stdout.flush()
        except OSError:
            pass  # the owner is gone; the end of its pipe says so too


def _prepare_child() -> None:
    """Runs in the new process before the command: it dies with the guard, and takes signals as
    usual.
    """
    processes.die_with_parent()
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m cli.guard", description=__doc__)
    parser.add_argument("--name", required=True, help="shown in lists of processes")
    parser.add_argument("--echo", action="store_true", help="tell the owner each line of output")
    parser.add_argument("--log", type=Path, required=True)
    parser.add_argument("--record", type=Path, required=True)
    parser.add_argument("command", nargs="+")
    options = parser.parse_args(arguments)
    log = RotatingLog(options.log)
    return Guard(options.command, log, options.record, options.echo).run()


if __name__ == "__main__":
    sys.exit(main())
