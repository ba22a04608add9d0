"""Status, /info, health, workers, metrics, errors of the framework, the schema."""

from __future__ import annotations

import asyncio

import pytest

from api.settings import ApiSettings
from shared.worker_info import StartStep, WorkerState
from tests.api.answering import Answerer, answering
from tests.api.serving import Front, eventually, front_door


async def status(front: Front) -> str:
    return str((await front.client.get("/")).json()["status"])


async def test_the_status_follows_the_workers(front: Front, settings: ApiSettings) -> None:
    reply = await front.client.get("/")
    assert (reply.status_code, reply.json()) == (200, {"status": "warming"})

    async def is_now(word: str) -> None:
        async def holds() -> bool:
            return await status(front) == word

        await eventually(holds)

    async with answering(settings, state=WorkerState.STARTING):
        await eventually(lambda: len(front.services.producer.known_workers) == 1)
        assert await status(front) == "warming"
    async with answering(settings):
        await is_now("ok")
    async with answering(settings, batch_mode=True):
        await is_now("batch")
    await is_now("warming")


async def test_info_tells_engine_defaults_limits_and_no_secret(
    settings: ApiSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DTYPE", "bfloat16")
    monkeypatch.setenv("HF_TOKEN", "very-secret")
    async with front_door(settings) as front:
        before = (await front.client.get("/info")).json()
        assert (before["status"], before["backend"], before["batch_mode"]) == (
            "warming",
            None,
            False,
        )
        async with answering(settings, engine="vllm"):
            await eventually(lambda: bool(front.services.producer.known_workers))
            reply = await front.client.get("/info")
    info = reply.json()
    assert (info["status"], info["backend"], info["engine_kind"]) == ("ok", "vllm", "async_v1")
    assert info["model_dir"] == "/models/simulated-1"
    assert info["defaults"] == {
        "max_new_tokens": 32,
        "temperature": 0.0,
        "top_p": 1.0,
        "top_k": 1,
        "repetition_penalty": 1.05,
        "frequency_penalty": 0.1,
    }
    assert info["env"]["DTYPE"] == "bfloat16"
    assert info["system_prompt_len"] == len(settings.system_prompt)
    assert info["system_prompt_preview"] == settings.system_prompt[:200]
    assert info["limits"]["QUEUE_CAP"] == 10_000
    assert info["limits"]["STALL_LIMIT_S"] == 60
    assert info["workers"][0]["effective_args"]["dtype"] == "bfloat16"
    assert "very-secret" not in reply.text


async def test_workers_show_why_one_does_not_serve(front: Front, settings: ApiSettings) -> None:
    steps = (StartStep("as configured", 1.5, "out of memory"),)
    changed = {"state": WorkerState.SETUP_FAILED, "reason": "out of memory", "start_report": steps}
    async with answering(settings, **changed):

        async def is_there() -> bool:
            return bool((await front.client.get("/workers")).json()["workers"])

        await eventually(is_there)
        (shown,) = (await front.client.get("/workers")).json()["workers"]
    assert (shown["id"], shown["state"], shown["is_live"]) == ("w-1", "setup_failed", True)
    assert shown["reason"] == "out of memory"
    assert shown["start_report"] == [
        {"name": "as configured", "seconds": 1.5, "error": "out of memory"}
    ]


async def test_health_paths_are_ready_once_the_broker_answers(front: Front) -> None:
    assert (await front.client.get("/livez")).json() == {"status": "ok"}
    await eventually(lambda: front.services.producer.is_up)
    for path in ("/readyz", "/health"):
        assert (await front.client.get(path)).status_code == 200
    front.services.drain.begin()
    reply = await front.client.get("/readyz")
    assert (reply.status_code, reply.json()["error"]["code"]) == (503, "draining")
    assert (await front.client.get("/livez")).status_code == 200
    reply = await front.client.post("/predict", json={"prompt": "x"})
    assert (reply.status_code, reply.json()["error"]["code"]) == (503, "draining")


async def test_queue_figures(front: Front) -> None:
    await front.client.post("/requests", json={"prompt": "x", "priority": "batch"})
    shown = (await front.client.get("/queue")).json()
    assert (shown["queued"], shown["running"], shown["depth"]["batch"]) == (1, 0, 1)
    assert shown["tokens"] > 0


async def test_metrics_name_what_was_served(front: Front, worker: Answerer) -> None:
    await eventually(lambda: bool(front.services.producer.known_workers))
    await front.client.post("/predict", json={"prompt": "hi"})
    await front.client.post("/predict", json={"prompt": "hi", "top_p": 7})
    await front.client.post("/predict", json={"prompt": "!engine"})
    await front.client.get("/livez")

    async def has_counted() -> bool:
        return (
            'sluice_submitted_total{model="simulated-1"} 2.0'
            in (await front.client.get("/metrics")).text
        )

    await eventually(has_counted)
    reply = await front.client.get("/metrics")
    assert reply.headers["content-type"].startswith("text/plain")
    who = 'model="simulated-1"'
    where = 'priority="standard",route="/predict"'
    for line in (
        f'sluice_requests_total{{code="",{who},outcome="finished",{where}}} 1.0',
        f'sluice_requests_total{{code="invalid_request",{who},outcome="rejected",{where}}} 1.0',
        f'sluice_requests_total{{code="engine_error",{who},outcome="error",{where}}} 1.0',
        'sluice_rejections_total{reason="invalid_request"} 1.0',
        'sluice_rejections_total{reason="queue_full"} 0.0',
        'sluice_queue_depth{model="simulated-1",priority="standard"} 0.0',
        'sluice_worker_state{state="ready",worker="w-1"} 1.0',
        'sluice_submitted_total{model="simulated-1"} 2.0',
        "sluice_broker_up 1.0",
        'sluice_queue_wait_seconds_count{model="simulated-1",priority="standard"} 2.0',
    ):
        assert line in reply.text
    assert "/livez" not in reply.text


async def test_version(front: Front) -> None:
    assert (await front.client.get("/version")).json()["name"] == "sluice"


async def test_unknown_paths_and_methods_are_the_frameworks_own(front: Front) -> None:
    reply = await front.client.get("/no-such-path")
    assert (reply.status_code, reply.json()) == (404, {"detail": "Not Found"})
    reply = await front.client.get("/predict")
    assert (reply.status_code, reply.json()) == (405, {"detail": "Method Not Allowed"})


async def test_the_schema_describes_the_bodies(front: Front) -> None:
    schema = (await front.client.get("/openapi.json")).json()
    assert schema["info"]["title"] == "Sluice"
    body = schema["paths"]["/predict"]["post"]["requestBody"]["content"]["application/json"]
    assert "max_new_tokens" in body["schema"]["properties"]
    body = schema["paths"]["/requests"]["post"]["requestBody"]["content"]["application/json"]
    assert {"prompt", "messages", "temperature", "stop"} <= body["schema"]["properties"].keys()
    for path in ("/docs", "/redoc"):
        reply = await front.client.get(path, headers={"Origin": "https://example.org"})
        assert reply.status_code == 200
        assert "access-control-allow-origin" not in reply.headers


async def test_an_unexpected_fault_is_500_without_its_text(
    front: Front, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken() -> None:
        raise RuntimeError("inner secret")

    monkeypatch.setattr(front.services.producer, "stats", broken)
    reply = await front.client.get("/queue")
    error = reply.json()["error"]
    assert (reply.status_code, error["code"]) == (500, "internal_error")
    assert error["request_id"] == reply.headers["x-request-id"]
    assert "secret" not in reply.text


async def test_status_answers_while_many_wait(front: Front, worker: Answerer) -> None:
    waiting = [
        asyncio.create_task(front.client.post("/predict", json={"prompt": "!slow"}))
        for _ in range(100)
    ]
    await eventually(lambda: len(worker.seen) == 64 or len(worker.seen) == 100)
    assert await status(front) in ("ok", "warming")
    worker.go.set()
    assert all(reply.status_code == 200 for reply in await asyncio.gather(*waiting))


async def test_a_path_cannot_forge_a_line_of_the_log(
    front: Front, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError

    monkeypatch.setattr("api.routes.requests.read_json", broken)
    path = "/requests/a%0A2026-01-01%20CRITICAL%20forged%1B%5B31m"
    assert (await front.client.put(path, json={"prompt": "x"})).status_code == 500
    said = [record.getMessage() for record in caplog.records if record.name == "api.edge"]
    assert said == ["unexpected error in PUT /requests/{request_id}"]


async def test_the_wait_in_the_queue_is_measured_for_all_that_a_caller_waited_for(
    front: Front, worker: Answerer
) -> None:
    async def measured(priority: str) -> int:
        text = (await front.client.get("/metrics")).text
        found = [
            line
            for line in text.splitlines()
            if line.startswith("sluice_queue_wait_seconds_count") and f'"{priority}"' in line
        ]
        return sum(int(float(line.rpartition(" ")[2])) for line in found)

    key = {"Idempotency-Key": "k"}
    for _ in range(2):
        await front.client.post("/predict", json={"prompt": ["a", "!engine", "b"]}, headers=key)
        assert await measured("standard") == 3
    sent = await front.client.post("/requests", json={"prompt": "!slow", "priority": "batch"})
    waiting = asyncio.create_task(front.client.get(f"{sent.headers['location']}?wait=10"))
    await eventually(lambda: front.services.producer.waiting == 1)
    worker.go.set()
    assert (await waiting).status_code == 200
    assert (await front.client.get(f"{sent.headers['location']}?wait=10")).status_code == 200
    assert await measured("batch") == 1
