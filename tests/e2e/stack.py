"""Broker, front door and vLLM workers as `up` runs them: the same commands, each under its guard, one at a time."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import httpx
from prometheus_client.parser import text_string_to_metric_families

from cli import machine, processes
from cli.broker import Broker, socket_path
from cli.data_folder import DataFolder
from cli.parts import Placement, api_part, broker_part, placement_env, placements, worker_part
from cli.supervisor import Part
from tests.e2e.door import Door
from tests.e2e.places import Family, environment, free_port, log_ends, wait_until

WORKERS = 2
START_LIMIT_S = 150.0
# Few requests at once, so that neither worker can take all; the same memory as on a CPU.
SETTINGS = {"ENGINE": "vllm_async", "VLLM_MAX_NUM_SEQS": "8", "KV_CACHE_GIB": "1"}
STOP_MARGIN_S = 10.0


class Guarded:
    """One part under its guard. `pid` is the part's own."""

    def __init__(self, part: Part) -> None:
        self.part = part
        self._guard = subprocess.Popen(
            (
                *(sys.executable, "-m", "cli.guard", "--name", part.name),
                *("--log", str(part.log), "--record", str(part.record), "--", *part.command),
            ),
            cwd=part.log.parent,
            env=dict(part.env),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        assert self._guard.stdout is not None
        told = json.loads(self._guard.stdout.readline())
        assert told["event"] == "started", told
        self.pid: int = told["pid"]

    @property
    def is_running(self) -> bool:
        return self._guard.poll() is None

    def family(self) -> Family:
        return Family(self.pid)

    def group_size(self) -> int:
        return len(processes.group_members(self.pid))

    def stop(self) -> None:
        """Ends it within its grace, and its guard with it."""
        guard = self._guard
        assert guard.stdin is not None
        assert guard.stdout is not None
        try:
            if guard.poll() is None:
                guard.stdin.write(f"stop {self.part.grace_s}\n".encode())
                guard.stdin.flush()
            guard.wait(self.part.grace_s + STOP_MARGIN_S)
        except (OSError, subprocess.TimeoutExpired):
            guard.kill()
            guard.wait()
        finally:
            guard.stdin.close()
            guard.stdout.close()


class Stack:
    """Placed as `up` places two workers, so that a second one may join at any time."""

    def __init__(self, folder: Path, model: Path) -> None:
        self.data = DataFolder(folder)
        self.door = Door(port := free_port())
        self.statuses: list[str] = []
        self._port = port
        self._first_worker_port = free_port()
        self._model = model
        self._env: Mapping[str, str] = environment(DATA_DIR=str(folder), **SETTINGS)
        self._parts: list[Guarded] = []
        self._workers = 0

    def start(self) -> None:
        """Broker and front door; no worker yet."""
        for folder in (self.data.broker, self.data.logs, self.data.run):
            folder.mkdir(parents=True, exist_ok=True)
        broker = Broker(self.data.broker, socket_path(self.data.broker))
        self._add(broker_part(broker, self.data, self._env))
        wait_until("the broker answers", broker.answers, 30.0)
        self._env = {**self._env, "REDIS_URL": broker.url}
        self._add(api_part(self.data, self._env, "127.0.0.1", self._port, drain_s=7.0))
        wait_until("the front door answers", lambda: self.door.status() is not None, 60.0)
        self._note_status()

    def add_worker(self) -> Guarded:
        """Returns once it serves."""
        self._workers += 1
        number = self._workers
        cards = machine.visible_gpus(os.environ.get("CUDA_VISIBLE_DEVICES"))
        places = placements(WORKERS, cards, 1, machine.cores(), machine.openmp_library())
        # More than one may come and go: the third takes the place of the first.
        placed = self._placed(places[(number - 1) % WORKERS])
        worker = self._add(
            worker_part(
                number,
                self.data,
                self._env,
                self._model,
                placed,
                drain_s=5.0,
                first_port=self._first_worker_port,
            )
        )

        def serves() -> bool:
            self._note_status()
            assert worker.is_running, log_ends(self.data.logs)
            states = {w["pid"]: w["state"] for w in self.door.workers()}
            return states.get(worker.pid) in ("ready", "busy")

        wait_until(f"worker-{number} serves", serves, START_LIMIT_S)
        wait_until("the front door has seen it", lambda: self._note_status() == "ok", 10.0)
        return worker

    def engine_figure(self, name: str) -> float:
        """One of vLLM's own, as the first worker's port passes it on."""
        url = f"http://127.0.0.1:{self._first_worker_port}/metrics"
        page = httpx.get(url, trust_env=False).raise_for_status().text
        families = text_string_to_metric_families(page)
        [value] = [s.value for family in families for s in family.samples if s.name == name]
        return value

    def stop(self) -> None:
        for part in reversed(self._parts):
            part.stop()
        self.door.close()

    def _placed(self, place: Placement) -> dict[str, str]:
        return placement_env(place, os.environ.get("LD_PRELOAD"), bound=False)

    def _add(self, part: Part) -> Guarded:
        guarded = Guarded(part)
        self._parts.append(guarded)
        return guarded

    def _note_status(self) -> str | None:
        """Every change of the front door's word is kept in order."""
        status = self.door.status()
        if status is not None and self.statuses[-1:] != [status]:
            self.statuses.append(status)
        return status
