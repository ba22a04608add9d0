"""Keeps parts running: starts each under a guard, says why one ended, and starts it again after a
wait.

Takes commands as data and knows nothing of the service. A supervised part ends for good only by
`stop`.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from cli.backoff import Backoff
from cli.records import end_leftovers

READY_EVERY_S = 0.2
REASON_CHARACTERS = 300
BAD_SETTING = 2  # how a part says that it cannot start with its settings: trying again cannot help
STOP_MARGIN_S = 10.0  # a guard is done this long after its part's grace; then it is killed itself


@dataclass(frozen=True)
class Part:
    """What to run. `env` is the whole environment; `grace_s` is the time between SIGTERM and
    SIGKILL.
    """

    name: str
    command: tuple[str, ...]
    env: Mapping[str, str] = field(repr=False)
    log: Path
    record: Path
    grace_s: float


@dataclass(frozen=True)
class End:
    """How a part ended: a code or a signal, and its last line of output."""

    code: int | None
    signal: str | None
    last_line: str

    def reason(self) -> str:
        if self.signal == "SIGKILL":  # it had no last word: its last line is about something else
            return "killed by SIGKILL, by hand or for lack of memory"
        how = f"killed by {self.signal}" if self.signal else f"exit code {self.code}"
        return f"{how}: {self.last_line[-REASON_CHARACTERS:]}" if self.last_line else how


class Life:
    """One life of a part, from the start of its guard until nothing of it is left."""

    def __init__(self, part: Part, guard: asyncio.subprocess.Process) -> None:
        self.part = part
        self.pid: int | None = None
        self._guard = guard

    @classmethod
    async def start(cls, part: Part, echo: bool = False) -> Life:
        command = (
            *(sys.executable, "-m", "cli.guard", "--name", part.name),
            *("--log", str(part.log), "--record", str(part.record)),
            *(("--echo",) if echo else ()),
            "--",
            *part.command,
        )
        guard = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env=dict(part.env),
            start_new_session=True,  # Ctrl-C reaches the launcher alone, which stops the parts in order
        )
        return cls(part, guard)

    async def end(self, on_line: Callable[[str], None] = lambda _: None) -> End:
        """Waits for the end; `on_line` gets each line of output where the life was started with
        echo.
        """
        end: End | None = None
        assert self._guard.stdout is not None
        async for line in self._guard.stdout:
            event = json.loads(line)
            match event["event"]:
                case "started":
                    self.pid = event["pid"]
                case "line":
                    on_line(event["text"])
                case "exit":
                    end = End(event["code"], event["signal"], event["last"])
        code = await self._guard.wait()
        if end is None:
            # The part's main process died with its guard; others of its group may not have.
            await asyncio.to_thread(end_leftovers, [self.part.record], 0.0)
            end = End(code, None, "its guard was killed")
        return end

    def stop(self, grace_s: float) -> None:
        """Asks the part to end; it is killed after its grace. Called again it may only shorten the
        time.
        """
        if self._guard.stdin is not None and not self._guard.stdin.is_closing():
            self._guard.stdin.write(f"stop {grace_s}\n".encode())

    def kill_guard(self) -> None:
        if self._guard.returncode is None:
            self._guard.kill()


OnState = Callable[[str, str], None]
"""Takes a part's name and one line about it."""


class Supervised:
    """One part over all its lives."""

    def __init__(
        self,
        part: Part,
        on_state: OnState,
        is_ready: Callable[[Life], Awaitable[str | None]],
        why: Callable[[Life], Awaitable[str | None]] | None = None,
        on_hopeless: Callable[[str], None] | None = None,
        tries: int | None = None,
    ) -> None:
        """`is_ready` gives the line to show once the part serves, None before. `why` may know a
        better reason for an end than the last line of output.

        `on_hopeless` is told why a part is not started again: it refuses its settings, or none of
        its first `tries` lives has ever served (None: it is tried for ever).
        """
        self.part = part
        self.ready = asyncio.Event()
        self.life: Life | None = None
        self._on_state = on_state
        self._is_ready = is_ready
        self._why = why
        self._on_hopeless = on_hopeless
        self._tries = tries
        self._stopping = False
        self._grace_s = part.grace_s
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._live(), name=f"supervise-{self.part.name}")

    async def stop(self) -> None:
        """Ends the part within its grace and returns when nothing of it is left."""
        self._stopping = True
        if self._task is None:
            return
        self._on_state(self.part.name, "stopping…")
        if self.life is None:  # between two lives
            self._task.cancel()
        else:
            self.life.stop(self._grace_s)
        await asyncio.wait([self._task], timeout=self._grace_s + STOP_MARGIN_S)
        if not self._task.done() and self.life is not None:
            self.life.kill_guard()
            await asyncio.wait([self._task], timeout=STOP_MARGIN_S)
        self._on_state(self.part.name, "stopped")

    def hurry(self) -> None:
        """Leaves the part no grace, now or when it is stopped."""
        self._grace_s = 0.0
        if self._stopping and self.life is not None:
            self.life.stop(0.0)

    async def _live(self) -> None:
        backoff = Backoff()
        lives = 0
        has_served = False
        while not self._stopping:
            began = time.monotonic()
            life = await self._begin()
            end = await self._to_the_end(life)
            was_ready = self.ready.is_set()
            has_served = has_served or was_ready
            lives += 1
            self.ready.clear()
            if self._stopping:
                return
            said = await self._why(life) if self._why is not None else None
            hopeless = None
            if end.code == BAD_SETTING and not was_ready:
                hopeless = said or end.last_line
            elif lives == self._tries and not has_served:
                hopeless = f"ended {lives} times and was never ready ({end.reason()})"
            if hopeless is not None and self._on_hopeless is not None:
                self._on_state(self.part.name, f"failed: {hopeless}")
                self._on_hopeless(hopeless)
                return
            backoff, wait_s = backoff.after(time.monotonic() - began, random.random())
            reason = said or end.reason()
            self._on_state(self.part.name, f"died ({reason}); starts again in {wait_s:.1f} s")
            await asyncio.sleep(wait_s)

    async def _begin(self) -> Life:
        self.life = life = await Life.start(self.part)
        if self._stopping:  # asked while the guard was being started
            life.stop(self._grace_s)
        else:
            self._on_state(self.part.name, "starting…")
        return life

    async def _to_the_end(self, life: Life) -> End:
        watch = asyncio.create_task(self._watch_ready(life))
        try:
            return await life.end()
        finally:
            watch.cancel()
            self.life = None

    async def _watch_ready(self, life: Life) -> None:
        while (line := await self._is_ready(life)) is None:
            await asyncio.sleep(READY_EVERY_S)
        if not self._stopping:
            self.ready.set()
            self._on_state(self.part.name, line)
