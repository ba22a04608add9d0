"""`python -m cli up` as a user starts it: a process with a data folder and a port of its own."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

from tests.e2e.door import Door
from tests.e2e.places import Family, environment, free_port, log_ends, of_data_folder, wait_until

STOP_LIMIT_S = 60.0


class Launcher:
    """The same place over several starts. `own` are settings."""

    def __init__(self, folder: Path, **own: str) -> None:
        self._folder = folder
        self.data = folder / "data"
        self.port = free_port()
        self.door = Door(self.port)
        self._env = environment(DATA_DIR=str(self.data), PORT=str(self.port), **own)
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, **own: str) -> None:
        """Returns at once. `own` are settings of this start alone."""
        with (self._folder / "up.log").open("ab") as out:
            self._process = subprocess.Popen(
                (sys.executable, "-m", "cli", "up"),
                cwd=self._folder,
                env={**self._env, **own},
                stdout=out,
                stderr=out,
            )

    def wait_for(self, status: str, limit_s: float) -> float:
        def has_come() -> bool:
            assert self.process.poll() is None, self.said()
            return self.door.status() == status

        return wait_until(f"GET / says {status}", has_come, limit_s)

    @property
    def process(self) -> subprocess.Popen[bytes]:
        assert self._process is not None
        return self._process

    def family(self) -> Family:
        return Family(self.process.pid)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(10)

    def interrupt(self) -> None:
        """Ctrl-C."""
        self.process.send_signal(signal.SIGINT)

    def down(self) -> tuple[int, str]:
        done = subprocess.run(
            (sys.executable, "-m", "cli", "down"),
            cwd=self._folder,
            env=self._env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=STOP_LIMIT_S,
        )
        return done.returncode, done.stdout

    def processes(self) -> list[int]:
        return of_data_folder(self.data)

    def said(self) -> str:
        return log_ends(self._folder) + "\n" + log_ends(self.data / "logs")

    def close(self) -> None:
        """Leaves nothing running, whatever the test did."""
        self.door.close()
        process = self._process
        if process is None:
            return
        family = Family(process.pid)
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(STOP_LIMIT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(10)
        wait_until("the launcher's processes are gone", family.is_gone, 15.0)
