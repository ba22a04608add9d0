"""The log of moves: each one a line with id, from, to and cause, where somebody wants them. The broker is real."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest
import redis

from shared.queue.consumer import Finished
from shared.queue.keys import Keys
from shared.queue.scripts import Call
from shared.queue.transitions import moved
from shared.request import Report
from shared.status import MOVES, ReqStatus
from tests.queue.pair import FREE, Pair, until
from tests.queue.test_readers import keep_house, let_time_pass

SECRET = "what nobody may read"
NAME = "shared.queue.transitions"


@pytest.fixture(autouse=True)
def _at_debug(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    with caplog.at_level(logging.DEBUG):
        yield


class Lines:
    """The moves of one id that were logged so far."""

    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        self._caplog = caplog

    def of(self, rid: str) -> list[str]:
        said = [r.getMessage() for r in self._caplog.records if r.name == NAME]
        return [line.removeprefix(f"{rid}: ") for line in said if line.startswith(f"{rid}: ")]


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Lines:
    return Lines(caplog)


async def submitted(pair: Pair, queue_timeout_s: float = 600) -> str:
    req = pair.req(SECRET, system_prompt=SECRET, queue_timeout_s=queue_timeout_s)
    await pair.producer.submit(req, FREE)
    return req.id


async def test_a_request_that_finishes(
    pair: Pair, lines: Lines, caplog: pytest.LogCaptureFixture
) -> None:
    rid = await submitted(pair)
    await pair.answer(await pair.claimed())
    assert lines.of(rid) == [
        "nothing -> pending (submitted)",
        "pending -> running (claim)",
        "running -> finished (stop)",
    ]
    assert SECRET not in caplog.text
    assert all(r.threadName for r in caplog.records if r.name == NAME)


async def test_a_request_that_is_cancelled_fails_or_expires(pair: Pair, lines: Lines) -> None:
    cancelled = await submitted(pair)
    await pair.producer.cancel(cancelled)
    await pair.producer.cancel(cancelled)
    assert lines.of(cancelled)[1:] == ["pending -> cancelled (cancelled)"]

    failed = await submitted(pair)
    await pair.consumer.finish(
        await pair.claimed(), Report(), None, code="engine_error", message=SECRET
    )
    assert lines.of(failed)[2:] == ["running -> error (engine_error)"]

    expired = await submitted(pair, queue_timeout_s=0.05)
    await until(lambda: lines.of(expired)[1:] == ["pending -> error (expire)"])


async def test_a_request_whose_front_door_is_gone(
    pair: Pair, lines: Lines, broker_url: str
) -> None:
    req = pair.req()
    await pair.producer.submit(req, FREE, held=True)
    for task in pair.producer._tasks:
        task.cancel()
    let_time_pass(broker_url, pair.settings.queue_name, 32)
    await keep_house(pair)
    assert lines.of(req.id)[1:] == ["running -> cancelled (client_gone)"]


async def test_a_request_that_is_given_back(pair: Pair, lines: Lines) -> None:
    rid = await submitted(pair)
    await pair.consumer.release([await pair.claimed()])
    await pair.consumer.suspect([await pair.claimed()], SECRET)
    await pair.consumer.retry(await pair.claimed(), SECRET)
    assert lines.of(rid)[2::2] == [
        "running -> pending (release)",
        "running -> pending (suspect)",
        "running -> pending (retry)",
    ]


async def test_a_request_whose_worker_is_gone(pair: Pair, lines: Lines, broker_url: str) -> None:
    rid = await submitted(pair)
    await pair.claimed()
    client = redis.Redis.from_url(broker_url)
    client.zadd(Keys(pair.settings.queue_name).fixed("lease"), {rid: 1})
    client.close()
    await keep_house(pair)
    # The front door's own housekeeper may have been faster; only one of them moved it.
    await until(lambda: lines.of(rid)[2:] == ["running -> pending (reap)"])


async def test_a_result_that_comes_after_its_lease_was_lost(
    pair: Pair, lines: Lines, broker_url: str
) -> None:
    """The state that it left is told, and a result that is stored already moves nothing."""
    rid = await submitted(pair)
    grant = await pair.claimed()
    client = redis.Redis.from_url(broker_url)
    client.zadd(Keys(pair.settings.queue_name).fixed("lease"), {rid: 1})
    client.close()
    await until(lambda: lines.of(rid)[2:] == ["running -> pending (reap)"])
    assert await pair.answer(grant) is Finished.OK
    assert await pair.answer(grant) is Finished.ALREADY
    assert lines.of(rid)[3:] == ["pending -> finished (stop)"]


async def test_a_submit_whose_first_reply_was_lost_is_told_once(pair: Pair, lines: Lines) -> None:
    run = pair.producer._line.run

    async def sent_again(call: Call, **options: Any) -> Any:
        await run(call, **options)
        return await run(call, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pair.producer._line, "run", sent_again)
        rid, head = await submitted(pair), pair.req()
        await pair.producer.submit_list(head, pair.children(head, 2), FREE)
    for told in (rid, f"{head.id}.0", f"{head.id}.1"):
        assert lines.of(told) == ["nothing -> pending (submitted)"]


async def test_a_submit_that_joins_anothers_is_no_move(pair: Pair, lines: Lines) -> None:
    req, head = pair.req(), pair.req()
    for _ in range(2):
        await pair.producer.submit(req, FREE, owns_id=False)
        await pair.producer.submit_list(head, pair.children(head, 1), FREE, owns_id=False)
    for told in (req.id, f"{head.id}.0"):
        assert lines.of(told) == ["nothing -> pending (submitted)"]


async def test_the_items_of_a_list(pair: Pair, lines: Lines) -> None:
    head = pair.req()
    await pair.producer.submit_list(head, pair.children(head, 2), FREE)
    await pair.producer.cancel(head.id)
    for i in range(2):
        assert lines.of(f"{head.id}.{i}") == [
            "nothing -> pending (submitted)",
            "pending -> cancelled (cancelled)",
        ]


def test_nothing_is_said_where_nobody_asks(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, NAME):
        moved("q.0-a", None, ReqStatus.PENDING, "submitted")
    assert not caplog.records


@pytest.mark.parametrize("start", ReqStatus)
def test_every_move_there_is_has_its_words(
    start: ReqStatus, caplog: pytest.LogCaptureFixture
) -> None:
    for to in sorted(MOVES[start]):
        caplog.clear()
        moved("q.0-a", start, to, "why")
        assert caplog.messages == [f"q.0-a: {start.value} -> {to.value} (why)"]
