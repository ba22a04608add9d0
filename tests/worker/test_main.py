"""The worker as a process: what it says when it cannot start, and that it leaves nothing below it."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import psutil

from shared.queue.connection import Connection
from shared.queue.producer import Producer
from shared.settings import QueueSettings
from shared.worker_info import WorkerState

ROOT = Path(__file__).parents[2]


async def test_a_worker_that_cannot_start_says_why_even_after_its_end(
    broker_url: str, queue_name: str, tmp_path: Path
) -> None:
    env = {
        **os.environ,
        "REDIS_URL": broker_url,
        "QUEUE_NAME": queue_name,
        "MODEL_DIR": str(tmp_path / "nothing"),
        "WORKER_ID": "failing",
    }
    settings = QueueSettings.load(redis_url=broker_url, queue_name=queue_name)
    connection = Connection.open(settings)
    producer = Producer(connection, settings)
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "worker", cwd=ROOT, env=env, stderr=asyncio.subprocess.DEVNULL
    )
    try:
        async with asyncio.timeout(60):
            assert await process.wait() == 3
        (seen,) = (await producer.stats()).workers
        assert seen.info.id == "failing"
        assert seen.info.state is WorkerState.SETUP_FAILED
        assert seen.info.reason is not None
        assert "MODEL_DIR" in seen.info.reason
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
        await connection.close()


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
