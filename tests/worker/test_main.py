"""The worker as a process: what it says when it cannot start, and that it leaves nothing below it."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import psutil

from shared.queue.connection import Connection
from shared.queue.producer import Producer
from shared.settings import QueueSettings
from shared.worker_info import WorkerInfo, WorkerState
from tests.queue.pair import FREE, Pair
from tests.valkey_server import Server

ROOT = Path(__file__).parents[2]


class Process:
    """A worker's process, and what the queue knows of it."""

    def __init__(self, process: asyncio.subprocess.Process, producer: Producer, log: Path) -> None:
        self._process = process
        self._producer = producer
        self._log = log

    def said(self) -> str:
        return self._log.read_text()

    async def told(self) -> WorkerInfo | None:
        workers = (await self._producer.stats()).workers
        return workers[0].info if workers else None

    async def until(self, state: WorkerState) -> WorkerInfo:
        async with asyncio.timeout(60):
            while True:
                info = await self.told()
                if info is not None and info.state is state:
                    return info
                assert self._process.returncode is None, self.said()
                await asyncio.sleep(0.05)

    async def end(self) -> int:
        async with asyncio.timeout(60):
            return await self._process.wait()

    async def stop(self) -> int:
        self._process.terminate()
        return await self.end()


@asynccontextmanager
async def worker(url: str, queue: str, log: Path, **own: str) -> AsyncIterator[Process]:
    """`own` are settings."""
    settings = QueueSettings.load(redis_url=url, queue_name=queue)
    connection = Connection.open(settings)
    env = {**os.environ, "REDIS_URL": url, "QUEUE_NAME": queue, **own}
    with log.open("wb") as out:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "worker", cwd=ROOT, env=env, stdout=out, stderr=out
        )
    try:
        yield Process(process, Producer(connection, settings), log)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
        await connection.close()


async def test_a_worker_that_cannot_start_says_why_even_after_its_end(
    broker_url: str, queue_name: str, tmp_path: Path
) -> None:
    own = {"MODEL_DIR": str(tmp_path / "nothing"), "WORKER_ID": "failing"}
    async with worker(broker_url, queue_name, tmp_path / "log", **own) as process:
        await process.until(WorkerState.SETUP_FAILED)
        assert await process.stop() == 3
        seen = await process.told()
    assert seen is not None
    assert seen.id == "failing"
    assert seen.state is WorkerState.SETUP_FAILED
    assert seen.reason is not None
    assert "MODEL_DIR" in seen.reason


async def test_while_no_worker_can_start_requests_wait_and_those_with_a_deadline_end(
    broker_url: str, queue_name: str, tmp_path: Path
) -> None:
    folder = tmp_path / "encoder"
    folder.mkdir()
    (folder / "config.json").write_text('{"architectures": ["BertForMaskedLM"]}')
    (folder / "model.safetensors").touch()
    pair = Pair(broker_url, queue_name)
    await pair.producer.start()
    try:
        patient, urgent = pair.req(), pair.req(queue_timeout_s=1.0)
        await pair.producer.submit(patient, FREE)
        async with worker(
            broker_url, queue_name, tmp_path / "log", MODEL_DIR=str(folder)
        ) as process:
            seen = await process.until(WorkerState.SETUP_FAILED)
            await pair.producer.submit(urgent, FREE, watch=True)
            ended = await pair.producer.wait(urgent.id, 30.0)
            await process.stop()
        assert seen.reason is not None
        assert "holds BertForMaskedLM, which is no language model" in seen.reason
        assert ended.outcome.code == "expired"
        [snapshot] = await pair.producer.snapshots([patient.id])
        assert snapshot is not None
        assert snapshot.outcome is None, "it waits on"
    finally:
        await pair.close()


async def test_a_variable_without_a_purpose_is_said_to_have_none_once(
    broker_url: str, queue_name: str, tmp_path: Path
) -> None:
    own = {"ENGINE": "simulated", "SERVE_VLLM_ENGINE": "v0", "DEBUG_NET": "1"}
    async with worker(broker_url, queue_name, tmp_path / "log", **own) as process:
        await process.until(WorkerState.READY)
        assert await process.stop() == 0
        said = process.said()
    assert said.count("SERVE_VLLM_ENGINE has no effect: vLLM has one engine") == 1
    assert said.count("DEBUG_NET has no effect") == 1


async def test_bad_values_are_told_once_and_in_the_chosen_form(
    broker_url: str, queue_name: str, tmp_path: Path
) -> None:
    """The bad address ends it after its first lines."""
    own = {"GPU_MEMORY_UTILIZATION": "all", "LOG_FORMAT": "json", "REDIS_URL": "carrier-pigeon://x"}
    async with worker(broker_url, queue_name, tmp_path / "log", **own) as process:
        assert await process.end() == 2
        *lines, end = process.said().splitlines()
    assert "REDIS_URL" in end
    shown = [(line["level"], line["message"]) for line in map(json.loads, lines)]
    assert shown == [("warning", "GPU_MEMORY_UTILIZATION: bad value 'all', taking 0.85")]


async def test_a_lease_that_a_short_pause_of_the_broker_ends_is_warned_of(
    broker_url: str, queue_name: str, tmp_path: Path
) -> None:
    """The bad address ends it after its first lines."""
    own = {"LEASE_S": "2", "REDIS_URL": "carrier-pigeon://x"}
    async with worker(broker_url, queue_name, tmp_path / "log", **own) as process:
        assert await process.end() == 2
        warning, _ = process.said().splitlines()
    assert "LEASE_S=2: a broker that stands still for 1 to 5 s" in warning


async def test_a_broker_that_evicts_stops_the_start_for_good(
    queue_name: str, tmp_path: Path
) -> None:
    """With the exit code of a bad setting, after which nobody tries again."""
    server = Server(extra=("--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru")).start()
    try:
        own = {"ENGINE": "simulated"}
        async with worker(server.url, queue_name, tmp_path / "log", **own) as process:
            seen = await process.until(WorkerState.SETUP_FAILED)
            assert await process.stop() == 2
        assert seen.reason is not None
        assert "REDIS_URL" in seen.reason
        assert "noeviction" in seen.reason
    finally:
        server.stop()
        server.clean()


async def test_a_broker_that_turns_the_worker_away_stops_the_start_and_no_line_holds_the_password(
    queue_name: str, tmp_path: Path
) -> None:
    server = Server().start()
    url = server.url.replace("//", "//sluice:hunter2@")
    own = {"ENGINE": "simulated", "BROKER_BUDGET_S": "0.5"}
    try:
        async with worker(url, queue_name, tmp_path / "log", **own) as process:
            assert await process.end() == 2
            said = process.said()
    finally:
        server.stop()
        server.clean()
    assert "this worker cannot start: REDIS_URL: the broker refuses its user or password" in said
    assert "hunter2" not in said


async def test_a_broker_that_does_not_keep_what_is_asked_for_stops_the_start(
    broker_url: str, queue_name: str, tmp_path: Path
) -> None:
    own = {"ENGINE": "simulated", "DURABILITY": "aof"}
    async with worker(broker_url, queue_name, tmp_path / "log", **own) as process:
        assert await process.end() == 2
        said = process.said()
    assert "REDIS_URL: DURABILITY=aof needs a broker with appendonly yes" in said


async def test_a_port_that_is_taken_costs_the_figures_and_not_the_worker(
    broker_url: str, queue_name: str, tmp_path: Path
) -> None:
    """It used to end the worker, and that after its engine had been loaded."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        own = {"ENGINE": "simulated", "WORKER_PORT": str(port)}
        async with worker(broker_url, queue_name, tmp_path / "log", **own) as process:
            await process.until(WorkerState.READY)
            assert await process.stop() == 0
            said = process.said()
    assert f"WORKER_PORT={port} cannot be opened" in said
    assert f"in use by pid {os.getpid()}" in said
    assert said.index("WORKER_PORT") < said.index("serves simulated")


async def test_the_port_is_open_before_there_is_an_engine(
    broker_url: str, queue_name: str, tmp_path: Path
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    own = {"MODEL_DIR": str(tmp_path / "nothing"), "WORKER_PORT": str(port)}
    async with (
        worker(broker_url, queue_name, tmp_path / "log", **own) as process,
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", trust_env=False) as client,
    ):
        await process.until(WorkerState.SETUP_FAILED)
        reply = await client.get("/livez")
        assert (reply.status_code, reply.text) == (503, "setup_failed\n")
        assert await process.stop() == 3


def test_an_exit_that_waits_for_nothing_leaves_no_process_below() -> None:
    script = (
        "import subprocess, sys\n"
        "from worker.__main__ import exit_now\n"
        "child = subprocess.Popen(['sleep', '600'], stdout=subprocess.DEVNULL)\n"
        "print(child.pid, flush=True)\n"
        "exit_now(4)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 4
    assert not psutil.pid_exists(int(done.stdout))
