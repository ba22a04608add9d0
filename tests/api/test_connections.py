"""What only real connections show: leaving, body limits, stopping. By the server that `python -m api` runs."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator

import httpx
import pytest

from api.settings import ApiSettings
from tests.api.answering import Answerer, answering
from tests.api.serving import Front, eventually, served
from tests.worker.scripted_engine import ScriptedEngine
from tests.worker.serving import Service


@pytest.fixture
async def live(settings: ApiSettings) -> AsyncIterator[Front]:
    async with served(settings) as front:
        yield front


async def leave_after_start(front: Front, worker: Answerer, **sent: object) -> str:
    """Ask, wait until the worker has it, and hang up. The id."""
    before = len(worker.seen)
    asking = asyncio.create_task(front.client.post("/predict", **sent))  # type: ignore[arg-type]
    await eventually(lambda: len(worker.seen) > before)
    await hang_up(asking)
    return worker.seen[-1].id


async def test_a_client_that_leaves_cancels_its_request(live: Front, worker: Answerer) -> None:
    rid = await leave_after_start(live, worker, json={"prompt": "!slow"})
    await eventually(lambda: rid in worker.aborted, within_s=2)
    state = (await live.client.get(f"/requests/{rid}")).json()
    assert (state["status"], state["error"]["code"]) == ("cancelled", "client_gone")
    assert live.services.producer.waiting == 0


async def hang_up(asking: asyncio.Task[httpx.Response]) -> None:
    asking.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await asking


async def test_who_leaves_while_queued_costs_no_worker_anything(
    live: Front, settings: ApiSettings
) -> None:
    async def has_live(count: int) -> bool:
        return (await live.services.producer.stats()).live == count

    asking = asyncio.create_task(live.client.post("/predict", json={"prompt": "never run"}))
    await eventually(lambda: has_live(1))
    await hang_up(asking)
    await eventually(lambda: has_live(0))
    async with answering(settings) as worker:
        assert (await live.client.post("/predict", json={"prompt": "hi"})).is_success
        assert [req.prompt for req in worker.seen] == ["hi"]


@pytest.fixture
async def engine(settings: ApiSettings) -> AsyncIterator[ScriptedEngine]:
    """Behind the worker's own loop."""
    service, engine = Service(settings.redis_url, settings.queue_name), ScriptedEngine()
    async with service.worker(engine):
        yield engine
    await service.close()


async def test_who_leaves_while_it_runs_stops_the_engine_within_a_second(
    live: Front, engine: ScriptedEngine
) -> None:
    asking = asyncio.create_task(live.client.post("/predict", json={"prompt": "hold on"}))
    await eventually(lambda: engine.running_texts == {"hold on"})
    left_at = time.monotonic()
    await hang_up(asking)
    await eventually(lambda: len(engine.aborted) == 1, within_s=1.0)
    await eventually(lambda: not engine.running_texts, within_s=1.0)
    assert time.monotonic() - left_at < 1.0
    state = (await live.client.get(f"/requests/{engine.aborted[0]}")).json()
    assert (state["status"], state["error"]["code"]) == ("cancelled", "client_gone")


async def test_a_cancel_at_another_front_door_stops_the_engine_within_a_second(
    live: Front, settings: ApiSettings, engine: ScriptedEngine
) -> None:
    async with served(settings) as other:
        asked = await live.client.post("/requests", json={"prompt": "hold on"})
        rid = asked.json()["id"]
        await eventually(lambda: engine.running_texts == {"hold on"})
        cancelled_at = time.monotonic()
        assert (await other.client.post(f"/requests/{rid}/cancel")).is_success
        await eventually(lambda: engine.aborted == [rid], within_s=1.0)
        await eventually(lambda: not engine.running_texts, within_s=1.0)
        assert time.monotonic() - cancelled_at < 1.0
    assert (await live.client.get(f"/requests/{rid}")).json()["status"] == "cancelled"


async def test_a_list_whose_client_leaves_is_cancelled_whole(live: Front, worker: Answerer) -> None:
    asking = asyncio.create_task(
        live.client.post("/predict", json={"prompt": ["!slow 1", "!slow 2"]})
    )
    await eventually(lambda: len(worker.seen) == 2)
    await hang_up(asking)
    await eventually(lambda: {req.id for req in worker.seen} <= set(worker.aborted), within_s=2)


@pytest.mark.parametrize(
    "sent",
    [
        {"json": {"prompt": "!slow", "on_disconnect": "continue"}},
        {"json": {"prompt": "!slow"}, "headers": {"Idempotency-Key": "k1"}},
    ],
)
async def test_who_means_to_come_back_leaves_it_running(
    sent: dict[str, object], live: Front, worker: Answerer
) -> None:
    rid = await leave_after_start(live, worker, **sent)
    await eventually(lambda: live.services.producer.waiting == 0)
    worker.go.set()
    reply = await live.client.get(f"/requests/{rid}?wait=5")
    assert (reply.status_code, reply.json()["text"]) == (200, "A(!slow)")


async def test_a_body_over_the_limit_is_413_with_or_without_a_length(live: Front) -> None:
    big = b'{"prompt": "' + b"x" * 11 * 2**20 + b'"}'
    headers = {"content-type": "application/json"}

    async def chunks() -> AsyncIterator[bytes]:
        for start in range(0, len(big), 2**16):
            yield big[start : start + 2**16]

    for path in ("/predict", "/requests", "/system_prompt"):
        for content in (big, chunks()):
            reply = await live.client.post(path, content=content, headers=headers)
            error = reply.json()["error"]
            assert (reply.status_code, error["code"]) == (413, "payload_too_large")
            assert "MAX_BODY_BYTES" in error["message"]
            assert reply.headers["x-should-retry"] == "false"
    assert (await live.client.get("/")).status_code == 200
    assert (await live.services.producer.stats()).live == 0


async def test_a_chunked_body_within_the_limit_is_served(live: Front, worker: Answerer) -> None:
    async def chunks() -> AsyncIterator[bytes]:
        yield b'{"prompt": '
        yield b'"hi"}'

    headers = {"content-type": "application/json"}
    reply = await live.client.post("/predict", content=chunks(), headers=headers)
    assert reply.json() == {"response": "A(hi)"}


async def test_a_prompt_of_many_megabytes_is_taken(live: Front, worker: Answerer) -> None:
    prompt = "long " * 1_600_000
    reply = await live.client.post("/predict", json={"prompt": prompt})
    assert reply.json() == {"response": f"A({prompt})"}
    assert worker.seen[0].prompt == prompt


async def test_stopping_lets_waiting_callers_go_and_keeps_their_requests(
    settings: ApiSettings, worker: Answerer
) -> None:
    brief = settings.model_copy(update={"api_drain_s": 0.3})
    async with served(brief) as live:
        waiting = asyncio.create_task(live.client.post("/predict", json={"prompt": "!slow"}))
        await eventually(lambda: len(worker.seen) == 1)
        live.services.drain.begin()
        reply = await waiting
        error = reply.json()["error"]
        assert (reply.status_code, error["code"], error["retryable"]) == (503, "draining", True)
        assert error["request_id"] == worker.seen[0].id
        assert "retry-after" in reply.headers
        snapshot = await live.services.producer.peek(error["request_id"])
        assert snapshot is not None
        assert snapshot.record is not None
        assert snapshot.record.held == 0
    async with served(settings) as again:
        worker.go.set()
        reply = await again.client.get(f"/requests/{error['request_id']}?wait=5")
        assert reply.json()["text"] == "A(!slow)"


@pytest.mark.parametrize(
    ("sent", "is_held"),
    [
        ({"json": {"prompt": "!slow"}}, 1),
        ({"json": {"prompt": ["!slow"]}}, 1),
        ({"json": {"prompt": "!slow", "on_disconnect": "continue"}}, 0),
        ({"json": {"prompt": "!slow"}, "headers": {"Idempotency-Key": "k1"}}, 0),
        ({"json": {"prompt": "!slow"}, "headers": {"Prefer": "respond-async"}}, 0),
    ],
)
async def test_what_goes_with_its_caller_goes_with_a_front_door_that_is_killed_too(
    sent: dict[str, object], is_held: int, live: Front, worker: Answerer
) -> None:
    asking = asyncio.create_task(live.client.post("/predict", **sent))  # type: ignore[arg-type]
    await eventually(lambda: len(worker.seen) == 1)
    snapshot = await live.services.producer.peek(worker.seen[0].id)
    assert snapshot is not None
    assert snapshot.record is not None
    assert snapshot.record.held == is_held
    worker.go.set()
    assert (await asking).status_code in (200, 202)


async def test_who_is_told_to_come_back_holds_it_no_more(live: Front, worker: Answerer) -> None:
    reply = await live.client.post(
        "/predict", json={"prompt": ["!slow"]}, headers={"Prefer": "wait=1"}
    )
    assert reply.status_code == 202
    snapshot = await live.services.producer.peek(worker.seen[0].id)
    assert snapshot is not None
    assert snapshot.record is not None
    assert snapshot.record.held == 0


async def test_an_answer_within_the_grace_is_still_delivered(
    settings: ApiSettings, worker: Answerer
) -> None:
    async with served(settings.model_copy(update={"api_drain_s": 5.0})) as live:
        waiting = asyncio.create_task(live.client.post("/predict", json={"prompt": "!slow"}))
        await eventually(lambda: len(worker.seen) == 1)
        live.services.drain.begin()
        worker.go.set()
        assert (await waiting).json() == {"response": "A(!slow)"}


async def test_garbage_on_the_wire_harms_nobody(live: Front) -> None:
    url = httpx.URL(live.client.base_url)
    for raw in (
        b"\x00\x01\x02\r\n\r\n",
        b"POST /predict HTTP/1.1\r\nHost: x\r\nContent-Length: abc\r\n\r\n",
        b"POST /predict HTTP/1.1\r\nHost: x\r\nContent-Length: -5\r\n\r\n",
        b"POST /predict HTTP/1.1\r\nHost: x\r\nContent-Length: 50\r\n\r\n{",
        b"GET / HTTP/1.1\r\nHost: x\r\nX-Request-Id: " + b"\xff" * 300 + b"\r\n\r\n",
    ):
        reader, writer = await asyncio.open_connection(url.host, url.port)
        writer.write(raw)
        writer.write_eof()
        first = await asyncio.wait_for(reader.read(100), 5)
        assert not first.startswith(b"HTTP/1.1 5"), raw
        writer.close()
        await writer.wait_closed()
    assert (await live.client.get("/")).json() == {"status": "warming"}


async def test_a_head_without_end_is_cut_off(live: Front) -> None:
    url = httpx.URL(live.client.base_url)
    reader, writer = await asyncio.open_connection(url.host, url.port)
    writer.write(b"GET / HTTP/1.1\r\nHost: x\r\nX-Long: ")
    with contextlib.suppress(ConnectionError):
        for _ in range(100):
            writer.write(b"x" * 65_536)
            await writer.drain()
    with contextlib.suppress(ConnectionError):
        assert (await asyncio.wait_for(reader.read(20), 5)).startswith(b"HTTP/1.1 431")
    writer.close()
    with contextlib.suppress(ConnectionError):
        await writer.wait_closed()
    reply = await live.client.get("/", headers={"X-Long": "x" * 20_000})
    assert reply.status_code == 200


async def test_one_connection_serves_many_requests(live: Front, worker: Answerer) -> None:
    for number in range(20):
        reply = await live.client.post("/predict", json={"prompt": f"p{number}"})
        assert reply.json() == {"response": f"A(p{number})"}


@pytest.mark.parametrize(
    "piece",
    [b"x: y\r\n", b"x" * 32, b"x: " + b"y" * 1_000 + b"\r\n"],
    ids=["many", "one without end", "long"],
)
@pytest.mark.parametrize(
    "start",
    [b'e\r\n{"prompt": "x"\r\n1\r\n}\r\n0\r\n', b"5;"],
    ids=["trailers", "chunk extension"],
)
async def test_trailers_without_end_are_cut_off(start: bytes, piece: bytes, live: Front) -> None:
    url = httpx.URL(live.client.base_url)
    reader, writer = await asyncio.open_connection(url.host, url.port)
    writer.write(
        b"POST /predict HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        b"Transfer-Encoding: chunked\r\n\r\n" + start
    )
    sent = 0
    with contextlib.suppress(ConnectionError):
        while sent < 16 * 2**20 and not reader.at_eof():
            writer.write(piece * (8_192 // len(piece)))
            await writer.drain()
            sent += 8_192
    assert sent < 16 * 2**20
    writer.close()
    with contextlib.suppress(ConnectionError):
        await writer.wait_closed()
    assert (await live.client.get("/")).status_code == 200
    assert (await live.services.producer.stats()).live == 0


async def test_a_body_of_many_small_chunks_and_trailers_within_the_limit_is_served(
    live: Front, worker: Answerer
) -> None:
    url = httpx.URL(live.client.base_url)
    reader, writer = await asyncio.open_connection(url.host, url.port)
    body = b'{"prompt": "' + b"x" * 40_000 + b'"}'
    writer.write(
        b"POST /predict HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        b"Connection: close\r\nTransfer-Encoding: chunked\r\n\r\n"
    )
    writer.write(b"".join(b"1;a=b\r\n%c\r\n" % byte for byte in body))
    writer.write(b"0\r\n" + b"x: y\r\n" * 1_000 + b"\r\n")
    reply = await asyncio.wait_for(reader.read(), 10)
    assert reply.startswith(b"HTTP/1.1 200")
    writer.close()
    await writer.wait_closed()


async def test_who_leaves_in_the_middle_of_a_body_is_no_error_of_ours(
    live: Front, caplog: pytest.LogCaptureFixture
) -> None:
    url = httpx.URL(live.client.base_url)
    _, writer = await asyncio.open_connection(url.host, url.port)
    writer.write(
        b"POST /predict HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        b"Content-Length: 50\r\n\r\n{"
    )
    await writer.drain()
    writer.transport.abort()

    async def is_told() -> bool:
        return 'code="client_gone"' in (await live.client.get("/metrics")).text

    await eventually(is_told)
    assert "unexpected error" not in caplog.text
