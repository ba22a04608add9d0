"""`python -m api` as a process: what stops its start, and how it stops."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from tests.api.serving import eventually
from tests.valkey_server import Server

ROOT = Path(__file__).parents[2]


def start(cwd: Path, **variables: str) -> subprocess.Popen[str]:
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), **variables}
    return subprocess.Popen(
        [sys.executable, "-m", "api"], cwd=cwd, env=env, stderr=subprocess.PIPE, text=True
    )


@contextmanager
def running(cwd: Path, **variables: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = start(cwd, PORT=str(port), **variables)
    try:
        yield process, f"http://127.0.0.1:{port}"
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize(
    ("variables", "named"),
    [
        ({"HOST": "0.0.0.0"}, "API_KEYS"),
        ({"QUEUE_CAP": "lots"}, "QUEUE_CAP"),
        ({"RESULT_RECORD_TTL_S": "60"}, "RESULT_RECORD_TTL_S"),
        ({"REDIS_URL": "carrier-pigeon://x"}, "REDIS_URL"),
    ],
)
def test_a_bad_setting_stops_the_start_in_one_line(
    variables: dict[str, str], named: str, tmp_path: Path
) -> None:
    process = start(tmp_path, **variables)
    _, said = process.communicate(timeout=30)
    assert process.returncode == 2
    assert named in said
    assert "Traceback" not in said
    assert len(said.strip().splitlines()) == 1


def test_bad_values_are_told_once_and_in_the_chosen_form(tmp_path: Path) -> None:
    """The bad address ends it after its first lines."""
    told = {"MAX_NEW_TOKENS": "many", "PROFILE": "neutral"}
    process = start(tmp_path, LOG_FORMAT="json", REDIS_URL="carrier-pigeon://x", **told)
    _, said = process.communicate(timeout=30)
    *lines, end = said.splitlines()
    assert "REDIS_URL" in end
    shown = [(line["level"], line["message"]) for line in map(json.loads, lines)]
    assert shown == [
        ("warning", "MAX_NEW_TOKENS: bad value 'many', taking 32"),
        ("warning", "without effect in PROFILE=neutral: MAX_NEW_TOKENS"),
    ]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_stops_it_in_order_without_a_broker(
    number: signal.Signals, tmp_path: Path
) -> None:
    with running(tmp_path, REDIS_URL="redis://127.0.0.1:1") as (process, url):
        async with httpx.AsyncClient(trust_env=False) as client:

            async def answers() -> bool:
                try:
                    return bool((await client.get(url)).json() == {"status": "warming"})
                except httpx.TransportError:
                    return False

            await eventually(answers, within_s=30)
        process.send_signal(number)
        _, said = process.communicate(timeout=10)
        assert process.returncode == 0
        assert "Traceback" not in said


async def test_who_waits_when_it_stops_is_told_so_though_the_broker_hangs(tmp_path: Path) -> None:
    """It was cut off with an empty 500: its request was still being kept alive when the server's patience ended."""
    broker = Server(tmp_path).start()
    try:
        with running(tmp_path, REDIS_URL=broker.url, API_DRAIN_S="0.2") as (process, url):
            async with httpx.AsyncClient(base_url=url, trust_env=False, timeout=20) as client:

                async def is_queued() -> bool:
                    try:
                        return bool((await client.get("/queue")).json()["queued"] == 1)
                    except (httpx.TransportError, KeyError):
                        return False

                async def ask() -> httpx.Response:
                    while True:
                        try:
                            return await client.post("/predict", json={"prompt": "x"})
                        except httpx.ConnectError:
                            await asyncio.sleep(0.05)

                asking = asyncio.create_task(ask())
                await eventually(is_queued, within_s=30)
                broker.send(signal.SIGSTOP)
                process.send_signal(signal.SIGTERM)
                reply = await asking
            assert (reply.status_code, reply.json()["error"]["code"]) == (503, "draining")
    finally:
        broker.stop(signal.SIGKILL)
