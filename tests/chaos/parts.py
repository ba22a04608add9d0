"""One process of the run: started, killed by its id, and started again until the run is over.

None outlives the run: each leads a group that is ended by number, and dies with the thread that started it.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from cli.processes import die_with_parent

LOOK_S = 0.02


class Part:
    """`on_end` is told name, exit code, and whether somebody here had asked for that end."""

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        env: Mapping[str, str],
        folder: Path,
        *,
        pause_s: Callable[[], float],
        on_end: Callable[[str, int, bool], None],
    ) -> None:
        self.name = name
        self.log = folder / f"{name}.log"
        self._command = command
        self._env = env
        self._folder = folder
        self._pause_s = pause_s
        self._on_end = on_end
        self._process: subprocess.Popen[bytes] | None = None
        self._was_asked = False
        self._keeping: asyncio.Task[None] | None = None

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def is_leaving(self) -> bool:
        """It was asked to end, and has not yet."""
        return self._was_asked and self.is_running

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """In the main thread: with the thread the process would end."""
        self._spawn()
        self._keeping = asyncio.create_task(self._keep(), name=self.name)

    def send(self, number: signal.Signals) -> bool:
        """Whether there was a process to get it."""
        if not self.is_running:
            return False
        self._was_asked = self._was_asked or number in (signal.SIGKILL, signal.SIGTERM)
        os.kill(self.pid, number)
        return True

    def end(self) -> None:
        """For good, at once, and with all that is in its group."""
        if self._keeping is not None:
            self._keeping.cancel()
        process = self._process
        if process is not None and process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def _spawn(self) -> None:
        self._was_asked = False
        with self.log.open("ab") as out:
            self._process = subprocess.Popen(
                self._command,
                cwd=self._folder,
                env=dict(self._env),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
                preexec_fn=die_with_parent,
            )

    async def _keep(self) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            assert self._process is not None
            code = self._process.poll()
            if code is not None:
                self._on_end(self.name, code, self._was_asked)
                await asyncio.sleep(self._pause_s())
                self._spawn()
