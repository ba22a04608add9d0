"""What only real connections show: leaving, body limits, stopping. By the server that `python -m api` runs."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import httpx
import pytest

from api.settings import ApiSettings
from tests.api.answering import Answerer
from tests.api.serving import Front, eventually, served


@pytest.fixture
async def live(settings: ApiSettings) -> AsyncIterator[Front]:
    async with served(settings) as front:
        yield front


async def leave_after_start(front: Front, worker: Answerer, **sent: object) -> str:
    """Ask, wait until the worker has it, and hang up. The id."""
    before = len(worker.seen)
    asking = asyncio.create_task(front.client.post("/predict", **sent))  # type: ignore[arg-type]
    await eventually(lambda: len(worker.seen) > before)
    asking.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await asking
    return worker.seen[-1].id


async def test_a_client_that_leaves_cancels_its_request(live: Front, worker: Answerer) -> None:
    rid = await leave_after_start(live, worker, json={"prompt": "!slow"})
    await eventually(lambda: rid in worker.aborted, within_s=2)
    state = (await live.client.get(f"/requests/{rid}")).json()
    assert (state["status"], state["error"]["code"]) == ("cancelled", "client_gone")
    assert live.services.producer.waiting == 0


async def test_a_list_whose_client_leaves_is_cancelled_whole(live: Front, worker: Answerer) -> None:
    asking = asyncio.create_task(
        live.client.post("/predict", json={"prompt": ["!slow 1", "!slow 2"]})
    )
    await eventually(lambda: len(worker.seen) == 2)
    asking.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await asking
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
    assert reply.json() == {"response": f"A({prompt.strip()})"} or reply.status_code == 200


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
    async with served(settings) as again:
        worker.go.set()
        reply = await again.client.get(f"/requests/{error['request_id']}?wait=5")
        assert reply.json()["text"] == "A(!slow)"


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
