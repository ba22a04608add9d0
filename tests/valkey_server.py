"""A real Valkey server for tests. Needs no pytest, so that the runner of recorded cases does not either."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path

import redis

from cli.broker import server_binary as find_server


def server_binary() -> str:
    """The one that comes with Sluice; TEST_SERVER names another, such as an older release."""
    return os.environ.get("TEST_SERVER") or str(find_server())


class Server:
    """A Valkey process with a unix socket in a short folder; `port` adds loopback TCP."""

    def __init__(
        self, folder: Path | None = None, *, aof: bool = False, extra: tuple[str, ...] = ()
    ) -> None:
        self._is_own_folder = folder is None
        self.folder = folder or Path(tempfile.mkdtemp(prefix="sluice-t-"))
        self.socket = self.folder / "s.sock"
        self.url = f"unix://{self.socket}"
        self.command = [
            server_binary(), "--port", "0", "--unixsocket", str(self.socket), "--dir", str(self.folder),
            "--save", "", "--appendonly", "yes" if aof else "no", "--maxmemory-policy", "noeviction",
            "--loglevel", "warning", *extra,
        ]  # fmt: skip
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> Server:
        # Signals as Python has them: a limit on the size of files is then an error to a write, as a full disk is.
        self.process = subprocess.Popen(
            self.command,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            restore_signals=False,
        )
        deadline = time.monotonic() + 20
        while True:
            client = redis.Redis.from_url(self.url)
            try:
                client.ping()
                return self
            except redis.RedisError:
                if time.monotonic() > deadline or self.process.poll() is not None:
                    raise
                time.sleep(0.02)
            finally:
                client.close()

    def send(self, number: int) -> None:
        assert self.process is not None
        os.kill(self.process.pid, number)

    def stop(self, number: int = signal.SIGTERM) -> None:
        if self.process is not None:
            if self.process.poll() is None:
                self.process.send_signal(number)
                self.process.send_signal(signal.SIGCONT)
            self.process.wait(20)
            self.process = None

    def clean(self) -> None:
        """Remove the folder that was made for it; after the last stop."""
        if self._is_own_folder:
            shutil.rmtree(self.folder, ignore_errors=True)
