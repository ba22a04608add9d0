"""Without a broker: what still answers, how soon the rest says 503, and that it comes back by itself."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Iterator
from functools import partial

import pytest
import redis

from api.settings import ApiSettings
from tests.api.answering import answering
from tests.api.conftest import Load
from tests.api.serving import Front, eventually, front_door, served
from tests.valkey_server import Server

STILL = ("/", "/livez", "/metrics", "/version", "/info", "/system_prompt")
NOT = (
    ("POST", "/predict"),
    ("POST", "/requests"),
    ("PUT", "/requests/mine"),
    ("GET", "/requests/mine"),
    ("GET", "/requests/mine?wait=9"),
    ("POST", "/requests/mine/cancel"),
    ("DELETE", "/requests/mine"),
    ("GET", "/requests/mine/timeline"),
    ("POST", "/system_prompt"),
    ("GET", "/readyz"),
    ("GET", "/health"),
    ("GET", "/workers"),
    ("GET", "/queue"),
)


@pytest.fixture
def own_broker() -> Iterator[Server]:
    server = Server(aof=True).start()
    yield server
    server.stop(signal.SIGKILL)
    server.clean()


@pytest.fixture
def settings(load_settings: Load, own_broker: Server, queue_name: str) -> ApiSettings:
    return load_settings({"REDIS_URL": own_broker.url, "QUEUE_NAME": queue_name})


async def assert_away(front: Front, system_prompt: str) -> None:
    for path in STILL:
        began = time.monotonic()
        reply = await front.client.get(path)
        assert reply.status_code == 200, path
        assert time.monotonic() - began < 0.5, path
    assert (await front.client.get("/system_prompt")).json() == {"system_prompt": system_prompt}
    began = time.monotonic()
    bodies = {"/system_prompt": {"system_prompt": "x"}}
    replies = await asyncio.gather(
        *(
            front.client.request(method, path, json=bodies.get(path, {"prompt": "x"}))
            for method, path in NOT
        )
    )
    assert time.monotonic() - began < 3
    for (method, path), reply in zip(NOT, replies, strict=True):
        error = reply.json()["error"]
        assert (reply.status_code, error["code"]) == (503, "broker_unavailable"), (method, path)
        assert int(reply.headers["retry-after"]) >= 1
        assert error["retryable"] is True


async def test_a_broker_that_is_stopped_and_comes_back(
    settings: ApiSettings, own_broker: Server
) -> None:
    async with front_door(settings) as front:
        await front.client.post("/system_prompt", json={"system_prompt": "be brief"})
        own_broker.stop(signal.SIGKILL)
        await assert_away(front, "be brief")
        own_broker.start()

        async def is_ready() -> bool:
            return (await front.client.get("/readyz")).status_code == 200

        await eventually(is_ready, within_s=6)
        async with answering(settings):
            reply = await front.client.post("/predict", json={"prompt": "hi"})
            assert reply.json() == {"response": "A(hi)"}


async def test_a_broker_that_hangs(settings: ApiSettings, own_broker: Server) -> None:
    async with front_door(settings) as front:
        await eventually(lambda: front.services.producer.is_up)
        own_broker.send(signal.SIGSTOP)
        try:
            await assert_away(front, settings.system_prompt)
        finally:
            own_broker.send(signal.SIGCONT)

        async def is_ready() -> bool:
            return (await front.client.get("/readyz")).status_code == 200

        await eventually(is_ready, within_s=6)


async def test_a_front_door_that_starts_before_its_broker(
    load_settings: Load, queue_name: str, own_broker: Server
) -> None:
    own_broker.stop()
    variables = {"REDIS_URL": own_broker.url, "QUEUE_NAME": queue_name}
    async with front_door(load_settings(variables)) as front:
        assert (await front.client.get("/")).json() == {"status": "warming"}
        await assert_away(front, front.services.settings.system_prompt)
        own_broker.start()

        async def is_ready() -> bool:
            return (await front.client.get("/readyz")).status_code == 200

        await eventually(is_ready, within_s=6)
        assert (await front.client.post("/requests", json={"prompt": "x"})).status_code == 202


async def test_a_caller_that_waits_through_a_restart_is_answered(
    settings: ApiSettings, own_broker: Server
) -> None:
    async with front_door(settings) as front, answering(settings) as worker:
        waiting = asyncio.create_task(front.client.post("/predict", json={"prompt": "!slow"}))
        await eventually(lambda: len(worker.seen) == 1)
        # AOF is flushed once a second: what was accepted must be on disk before the plug is pulled.
        await asyncio.sleep(1.2)
        own_broker.stop(signal.SIGKILL)
        worker.go.set()
        own_broker.start()
        assert (await waiting).json() == {"response": "A(!slow)"}


async def is_answered(front: Front, code: str) -> bool:
    """The metrics tell of an answer, also of one that nobody was there to read."""
    text = (await front.client.get("/metrics")).text
    return f'sluice_requests_total{{code="{code}"' in text


async def has_ended(front: Front, rid: str, code: str) -> bool:
    shown = (await front.client.get(f"/requests/{rid}")).json()
    return bool(shown.get("status") == "cancelled" and shown["error"]["code"] == code)


@pytest.mark.parametrize("prompt", ["!slow", ["!slow 1", "!slow 2"]])
async def test_who_leaves_while_the_broker_hangs_is_cancelled_once_it_is_back(
    prompt: str | list[str], settings: ApiSettings, own_broker: Server
) -> None:
    async with served(settings) as front, answering(settings) as worker:
        asking = asyncio.create_task(front.client.post("/predict", json={"prompt": prompt}))
        await eventually(lambda: len(worker.seen) == (1 if prompt == "!slow" else 2))
        own_broker.send(signal.SIGSTOP)
        try:
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)
            await eventually(lambda: is_answered(front, "client_gone"))
        finally:
            own_broker.send(signal.SIGCONT)
        for req in worker.seen:
            await eventually(partial(has_ended, front, req.id, "client_gone"))


async def test_who_waited_too_long_while_the_broker_hangs_is_cancelled_once_it_is_back(
    settings: ApiSettings, own_broker: Server
) -> None:
    short = settings.model_copy(update={"sync_wait_s": 1.0})
    async with served(short) as front, answering(settings) as worker:
        asking = asyncio.create_task(front.client.post("/predict", json={"prompt": "!slow"}))
        await eventually(lambda: len(worker.seen) == 1)
        own_broker.send(signal.SIGSTOP)
        try:
            reply = await asking
        finally:
            own_broker.send(signal.SIGCONT)
        error = reply.json()["error"]
        assert (reply.status_code, error["code"]) == (504, "wait_timeout")
        await eventually(lambda: has_ended(front, error["request_id"], "wait_timeout"))


def empty_before(
    monkeypatch: pytest.MonkeyPatch, front: Front, broker: Server, method: str
) -> None:
    """The broker is emptied the next time that the front door's half is asked for this."""
    producer = front.services.producer
    ask = getattr(producer, method)

    async def empty_and_ask(*args: object) -> object:
        with redis.Redis.from_url(broker.url) as client:
            client.flushall()
        return await ask(*args)

    monkeypatch.setattr(producer, method, empty_and_ask)


async def test_a_list_whose_answers_are_gone_when_it_ends_is_to_be_sent_again(
    settings: ApiSettings, own_broker: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its callers were told that the answers were no longer kept, which no retry mends."""
    async with front_door(settings) as front, answering(settings):
        empty_before(monkeypatch, front, own_broker, "answers")
        reply = await front.client.post("/predict", json={"prompt": ["one", "two"]})
        assert (reply.status_code, reply.json()["error"]["code"]) == (503, "broker_lost")


@pytest.mark.parametrize(
    ("method", "path", "headers"),
    [
        ("PUT", "/requests/mine", {}),
        ("POST", "/requests", {"idempotency-key": "k"}),
        ("POST", "/predict", {"idempotency-key": "k", "prefer": "respond-async"}),
    ],
)
async def test_a_submit_that_joined_what_is_gone_then_is_to_be_sent_again(
    settings: ApiSettings,
    own_broker: Server,
    monkeypatch: pytest.MonkeyPatch,
    method: str,
    path: str,
    headers: dict[str, str],
) -> None:
    """It was told 404, as if an id of nobody's had been polled."""
    async with front_door(settings) as front:
        ask = partial(front.client.request, method, path, json={"prompt": "x"}, headers=headers)
        assert (await ask()).status_code == 202
        empty_before(monkeypatch, front, own_broker, "peek")
        reply = await ask()
        assert (reply.status_code, reply.json()["error"]["code"]) == (503, "broker_lost")
        monkeypatch.undo()
        assert (await ask()).status_code == 202


async def test_a_long_poll_over_which_the_broker_was_emptied_is_no_404(
    settings: ApiSettings, own_broker: Server
) -> None:
    client = redis.Redis.from_url(own_broker.url)
    async with front_door(settings) as front:
        rid = (await front.client.post("/requests", json={"prompt": "x"})).json()["id"]
        poll = asyncio.create_task(front.client.get(f"/requests/{rid}", params={"wait": "1"}))
        await eventually(lambda: front.services.producer.waiting == 1)
        client.flushall()
        reply = await poll
        assert (reply.status_code, reply.json()["error"]["code"]) == (503, "broker_lost")
    client.close()
