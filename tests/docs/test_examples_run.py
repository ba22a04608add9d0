"""The README's commands and everything in `examples/` are run against a whole service.

The engine is the simulated one: what is checked is that each command does what is written beside it, not the answer.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.architecture.source_tree import ROOT
from tests.docs import pages

READY_S = 60
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A whole service, started as `make up` starts it, without a model."""
    folder = tmp_path_factory.mktemp("up")
    port = free_port()
    own = {
        "ENGINE": "simulated",
        "PORT": str(port),
        "DATA_DIR": str(folder / "data"),
        "WORKERS": "1",
    }
    absent = dict.fromkeys(("HOST", "REDIS_URL", "QUEUE_NAME", "API_KEYS", "ADMIN_TOKEN"), "")
    with (folder / "up.log").open("wb") as log:
        up = subprocess.Popen(
            [sys.executable, "-m", "cli", "up"],
            cwd=ROOT,
            env={**os.environ, **absent, **own},
            stdout=log,
            stderr=log,
        )
    try:
        url = f"http://127.0.0.1:{port}"
        wait_until_ready(url, up, folder / "up.log")
        yield url
    finally:
        up.send_signal(signal.SIGTERM)
        assert up.wait(60) == 0


def wait_until_ready(url: str, up: subprocess.Popen[bytes], log: Path) -> None:
    began = time.monotonic()
    while time.monotonic() - began < READY_S:
        try:
            if httpx.get(f"{url}/", timeout=2).json() == {"status": "ok"}:
                return
        except httpx.TransportError:
            pass
        assert up.poll() is None, log.read_text()
        time.sleep(0.1)
    raise AssertionError(f"not ready within {READY_S} s:\n{log.read_text()}")


def run(command: list[str], timeout_s: float = 60) -> str:
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=timeout_s)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def curls() -> list[str]:
    """The README's curl commands, in order."""
    found = []
    for block in pages.blocks("README.md", "sh"):
        lines = re.sub(r"\\\n\s*", " ", block).splitlines()
        found += [line for line in lines if line.startswith("curl ")]
    return found


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda p: p.name)
def test_an_example_runs(path: Path, url: str) -> None:
    assert run([sys.executable, str(path), url]).strip()


def test_curl_example_runs(url: str) -> None:
    text = run(["bash", "examples/curl.sh", url])
    assert '{"status":"ok"}' in text
    bodies = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
    status, one, several, polled = bodies
    assert status == {"status": "ok"}
    assert isinstance(one["response"], str)
    assert len(several["response"]) == 2
    assert polled["status"] == "finished"


def test_readme_commands_do_what_is_written_beside_them(url: str) -> None:
    status, one, several, submit, poll, cancel = (
        command.replace("localhost:8000", url.removeprefix("http://")) for command in curls()
    )
    shown_status, shown_one, shown_several, shown_submitted, shown_final = map(
        json.loads, pages.blocks("README.md", "json")
    )
    assert json.loads(run(["bash", "-c", status])) == shown_status
    assert json.loads(run(["bash", "-c", one])).keys() == shown_one.keys()
    answers = json.loads(run(["bash", "-c", several]))
    assert answers.keys() == shown_several.keys()
    assert len(answers["response"]) == len(shown_several["response"])
    submitted = json.loads(run(["bash", "-c", submit]))
    assert submitted["status"] == "pending"
    assert submitted.keys() == shown_submitted.keys()
    assert submitted["urls"].keys() == shown_submitted["urls"].keys()
    final = json.loads(run(["bash", "-c", poll.replace("<id>", submitted["id"])]))
    assert final["status"] == "finished"
    assert final.keys() == shown_final.keys()
    assert final["usage"].keys() == shown_final["usage"].keys()
    ended = json.loads(run(["bash", "-c", cancel.replace("<id>", submitted["id"])]))
    assert ended["status"] == "finished"
