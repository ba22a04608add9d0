"""The front door before a real worker process with the simulated engine: the whole way, template included."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from api.settings import ApiSettings
from tests.api.serving import Front, eventually, served

ROOT = Path(__file__).parents[2]


@pytest.fixture
def worker_process(settings: ApiSettings, tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    env = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(ROOT),
        "ENGINE": "simulated",
        "REDIS_URL": settings.redis_url,
        "QUEUE_NAME": settings.queue_name,
    }
    command = [sys.executable, "-m", "worker"]
    with (tmp_path / "worker.log").open("w") as said:
        process = subprocess.Popen(command, cwd=tmp_path, env=env, stderr=said)
    yield process
    process.terminate()
    process.wait(30)


@pytest.fixture
async def whole(
    settings: ApiSettings, worker_process: subprocess.Popen[bytes], tmp_path: Path
) -> AsyncIterator[Front]:
    async with served(settings) as front:

        async def is_ok() -> bool:
            assert worker_process.poll() is None, (tmp_path / "worker.log").read_text()
            return bool((await front.client.get("/")).json() == {"status": "ok"})

        await eventually(is_ok, within_s=60)
        yield front


async def test_prompts_lists_and_messages_are_answered(whole: Front) -> None:
    reply = await whole.client.post("/predict", json={"prompt": "hi"})
    assert reply.json() == {"response": "A(hi)"}
    assert reply.headers["x-finish-reason"] == "stop"
    prompts = [f"p{i}" for i in range(100)]
    reply = await whole.client.post("/predict", json={"prompt": prompts})
    assert reply.json() == {"response": [f"A({p})" for p in prompts]}
    body = {"messages": [{"role": "user", "content": "hi"}], "temperature": 0.5, "seed": 1}
    rid = (await whole.client.post("/requests", json=body)).json()["id"]
    reply = await whole.client.get(f"/requests/{rid}?wait=10")
    assert (reply.status_code, reply.json()["text"]) == (200, "A(hi)")
    assert reply.json()["usage"]["completion_tokens"] > 0


async def test_an_echo_is_no_engines_business_and_every_worker_gives_it(whole: Front) -> None:
    reply = await whole.client.post("/requests", json={"prompt": "hi", "echo": True})
    assert reply.status_code == 202, reply.text
    reply = await whole.client.get(f"/requests/{reply.json()['id']}?wait=10")
    assert reply.json()["text"] == "hiA(hi)"


async def test_what_the_engine_lacks_is_refused_and_what_is_too_long_is_413(whole: Front) -> None:
    reply = await whole.client.post("/requests", json={"prompt": "x", "logprobs": 2})
    assert (reply.status_code, reply.json()["error"]["param"]) == (422, "logprobs")
    reply = await whole.client.post("/predict", json={"prompt": "long " * 100_000})
    assert (reply.status_code, reply.json()["error"]["code"]) == (413, "prompt_too_long")
    assert (await whole.client.post("/predict", json={"prompt": "hi"})).status_code == 200


async def test_many_callers_get_their_own_answers(whole: Front) -> None:
    asks = [whole.client.post("/predict", json={"prompt": f"q{i}"}) for i in range(200)]
    replies = await asyncio.gather(*asks)
    assert [reply.json() for reply in replies] == [{"response": f"A(q{i})"} for i in range(200)]
