"""Starts what is measured as processes of its own, waits until it serves, and ends exactly that.

Each runs under the launcher's guard (`python -m cli.guard`), so that it and everything below it ends
with this process, however that ends. Knows nothing of figures.
"""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx

from bench.settings import ROOT, environment
from shared.worker_info import WorkerState

READY_LIMIT_S = 300.0
READY_EVERY_S = 0.2
GRACE_S = 20.0
GUARD_MARGIN_S = 15.0
LOG_LINES = 25
QUEUE = "bench"


class StackError(Exception):
    """Something did not start, or ended; the text holds the end of its log."""


class Guarded:
    """One program under a guard. `with` ends it, first politely."""

    def __init__(
        self, name: str, command: Sequence[str], folder: Path, env: Mapping[str, str]
    ) -> None:
        self._name = name
        self._folder = folder
        self._log = folder / f"{name}.log"
        self._command = (
            *(sys.executable, "-m", "cli.guard", "--name", name, "--log", str(self._log)),
            *("--record", str(folder / f"{name}.json"), "--", *command),
        )
        self._env = dict(env)
        self._guard: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        # A working directory of its own: an `.env` and the models of the checkout stay out of it.
        self._guard = subprocess.Popen(
            self._command,
            cwd=self._folder,
            env=self._env,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C comes to the benchmark, which then ends this in order
        )
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        guard = self._guard
        if guard is None or guard.stdin is None:
            return
        try:
            guard.stdin.write(f"stop {GRACE_S}\n".encode())
            guard.stdin.flush()
            guard.wait(GRACE_S + GUARD_MARGIN_S)
        except (OSError, subprocess.TimeoutExpired):
            guard.kill()
            guard.wait()
        finally:
            guard.stdin.close()

    def until(self, is_ready: Callable[[], bool]) -> None:
        """Returns when it serves. Raises `StackError` when it ends first or takes too long."""
        assert self._guard is not None
        began = time.monotonic()
        while not is_ready():
            code = self._guard.poll()
            if code is not None:
                raise StackError(f"{self._name} ended with code {code}:\n{self.log_end()}")
            if time.monotonic() - began > READY_LIMIT_S:
                raise StackError(
                    f"{self._name} is not ready after {READY_LIMIT_S:.0f} s:\n{self.log_end()}"
                )
            time.sleep(READY_EVERY_S)

    def log_end(self) -> str:
        try:
            lines = self._log.read_text("utf-8", errors="replace").splitlines()
        except OSError:
            return ""
        return "\n".join(lines[-LOG_LINES:])


@dataclass(frozen=True)
class Service:
    """Where our own service is reached, and what its parts have written down of themselves."""

    url: str
    redis_url: str
    run: Path

    def pid(self, part: str) -> int:
        """Of `api`, `broker`, `worker-1`, … as it runs now."""
        return int(json.loads((self.run / f"{part}.json").read_text("utf-8"))["part"])

    def worker_args(self) -> dict[str, object]:
        """The engine's arguments that are really in force, as its worker tells them."""
        reply = httpx.get(f"{self.url}/workers", timeout=10, trust_env=False).json()
        args: dict[str, object] = reply["workers"][0]["effective_args"]
        return args


@contextmanager
def service(folder: Path, own: Mapping[str, str], *, workers: int = 1) -> Iterator[Service]:
    """Broker, front door and workers, as `up` runs them, once all workers serve; `own` are settings."""
    port = free_port()
    folder.mkdir(parents=True, exist_ok=True)
    data = folder / "data"
    url = f"http://127.0.0.1:{port}"
    env = environment(
        {
            "DATA_DIR": str(data),
            "HOST": "127.0.0.1",
            "PORT": str(port),
            "WORKERS": str(workers),
            "QUEUE_NAME": QUEUE,
            **own,
        }
    )
    with Guarded("up", (sys.executable, "-m", "cli", "up"), folder, env) as up:
        up.until(lambda: answers(f"{url}/readyz") and len(serving(url)) >= workers)
        run = data / "run"
        yield Service(url, (run / "broker.url").read_text("utf-8").strip(), run)


def serving(url: str) -> list[dict[str, Any]]:
    """The workers that take requests now, as `GET /workers` tells them; none where nobody answers."""
    told = get(f"{url}/workers")
    workers = told["workers"] if isinstance(told, dict) else []
    return [each for each in workers if each["is_live"] and WorkerState(each["state"]).can_serve]


def get(url: str) -> object:
    """The JSON of a GET, or None where there is no good answer yet."""
    try:
        reply = httpx.get(url, timeout=2.0, trust_env=False)
        return reply.json() if reply.status_code == httpx.codes.OK else None
    except (httpx.HTTPError, ValueError):
        return None


def answers(url: str) -> bool:
    try:
        return httpx.get(url, timeout=2.0, trust_env=False).status_code == httpx.codes.OK
    except httpx.HTTPError:
        return False


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def model_folder() -> Path:
    """The model that a worker would serve from the checkout, made ready if need be."""
    done = subprocess.run(
        (sys.executable, "-m", "worker.model"),
        cwd=ROOT,
        env=environment({}),
        stdout=subprocess.PIPE,
        text=True,
    )
    if done.returncode != 0:
        raise StackError("there is no model to measure with")
    return Path(done.stdout.splitlines()[-1])
