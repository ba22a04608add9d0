"""Who submitted with a callback is told once of the end, however it came. The broker is real."""

from __future__ import annotations

import asyncio
import logging
from functools import partial

import pytest
import redis

from shared.errors import BrokerLost, Draining, QueueFull, SluiceError
from shared.queue.keys import Keys
from shared.queue.snapshot import Caps
from shared.queue.waiters import Answer
from shared.request import Body, FinishReason, Report
from tests.queue.pair import FREE, Pair, until


class Told:
    """A callback that remembers; with `error` it raises after that."""

    def __init__(self, error: BaseException | None = None) -> None:
        self.all: list[Answer | SluiceError] = []
        self._error = error

    def __call__(self, answer: Answer | SluiceError) -> None:
        self.all.append(answer)
        if self._error:
            raise self._error

    @property
    def ends(self) -> list[str]:
        return [a.outcome.status.value if isinstance(a, Answer) else a.code for a in self.all]


async def test_a_callback_gets_the_answer(pair: Pair) -> None:
    told, req = Told(), pair.req("hello")
    await pair.producer.submit(req, FREE, callback=told)
    await pair.answer(await pair.claimed())
    await until(lambda: bool(told.all))
    (answer,) = told.all
    assert isinstance(answer, Answer)
    assert (answer.id, answer.body) == (req.id, Body(text="A(hello)"))
    assert answer.outcome.report.finish_reason is FinishReason.stop
    assert pair.producer.waiting == 0, "nothing is kept for it"


async def test_a_callback_hears_of_a_cancel_and_of_an_error(pair: Pair) -> None:
    told, req = Told(), pair.req()
    await pair.producer.submit(req, FREE, callback=told)
    await pair.producer.cancel(req.id)
    await until(lambda: told.ends == ["cancelled"])

    told = Told()
    await pair.producer.submit(pair.req(), FREE, callback=told)
    await pair.consumer.finish(await pair.claimed(), Report(), None, code="engine_error")
    await until(lambda: told.ends == ["error"])
    (answer,) = told.all
    assert isinstance(answer, Answer)
    assert (answer.outcome.code, answer.body) == ("engine_error", None)


async def test_a_second_end_calls_nobody(pair: Pair) -> None:
    told, req = Told(), pair.req()
    await pair.producer.submit(req, FREE, watch=True, callback=told)
    grant = await pair.claimed()
    await pair.producer.cancel(req.id)
    await until(lambda: bool(told.all))
    await pair.answer(grant)
    await pair.producer.cancel(req.id)
    # The next request's end comes after all that the first could still cause.
    after = Told()
    await pair.producer.submit(pair.req(), FREE, callback=after)
    await pair.answer(await pair.claimed())
    await until(lambda: bool(after.all))
    assert told.ends == ["cancelled"]
    assert (await pair.producer.wait(req.id, 1)).outcome.status == "cancelled"
    pair.producer.unwatch(req.id)


class Odd(BaseException):
    """What no `except Exception` takes."""


@pytest.mark.parametrize("error", [ValueError("broken"), Odd()], ids=lambda e: type(e).__name__)
async def test_what_a_callback_raises_is_logged_and_goes_no_further(
    error: BaseException, pair: Pair, caplog: pytest.LogCaptureFixture
) -> None:
    told, req = Told(error), pair.req()
    await pair.producer.submit(req, FREE, callback=told)
    await pair.answer(await pair.claimed())
    await until(lambda: bool(told.all))
    (record,) = [r for r in caplog.records if r.name == "shared.queue.callbacks"]
    assert record.getMessage() == f"the callback of {req.id} failed"
    assert record.levelno == logging.ERROR
    next_one = Told()
    await pair.producer.submit(pair.req(), FREE, callback=next_one)
    await pair.answer(await pair.claimed())
    await until(lambda: next_one.ends == ["finished"])


async def test_a_lost_notice_loses_no_callback(pair: Pair, broker_url: str) -> None:
    told, req = Told(), pair.req()
    await pair.producer.submit(req, FREE, callback=told)
    keys, client = Keys(pair.settings.queue_name), redis.Redis.from_url(broker_url)
    client.delete(keys.out(pair.producer.api_id))
    client.close()
    await pair.answer(await pair.claimed())
    await until(lambda: told.ends == ["finished"])


async def test_a_joined_request_has_a_callback_for_each_submit(pair: Pair) -> None:
    first, second, late, req = Told(), Told(), Told(), pair.req()
    await pair.producer.submit(req, FREE, callback=first)
    assert (await pair.producer.submit(req, FREE, callback=second)).joined
    await pair.answer(await pair.claimed())
    await until(lambda: bool(first.all and second.all))
    await pair.producer.submit(req, FREE, callback=late)
    await until(lambda: bool(late.all))
    assert first.ends == second.ends == late.ends == ["finished"]


async def test_a_list_has_one_callback_for_all_its_items(pair: Pair) -> None:
    told, head = Told(), pair.req()
    await pair.producer.submit_list(head, pair.children(head, 2), FREE, callback=told)
    await pair.answer(await pair.claimed())
    assert not told.all
    await pair.answer(await pair.claimed())
    await until(lambda: told.ends == ["finished"])


async def test_a_refused_submit_calls_nobody(pair: Pair) -> None:
    await pair.producer.submit(pair.req(), FREE)
    told = Told()
    with pytest.raises(QueueFull):
        await pair.producer.submit(pair.req(), Caps(requests=1), callback=told)
    assert (told.all, pair.producer.waiting) == ([], 0)


async def test_a_callback_that_would_have_to_be_awaited_is_refused_before_the_submit(
    pair: Pair,
) -> None:
    class Awaited:
        async def __call__(self, answer: object, more: object = None) -> None: ...

    head = pair.req()
    for callback in (Awaited(), Awaited().__call__, partial(Awaited().__call__, more=1)):
        with pytest.raises(TypeError, match="coroutine"):
            await pair.producer.submit(pair.req(), FREE, callback=callback)
        with pytest.raises(TypeError, match="coroutine"):
            await pair.producer.submit_list(head, pair.children(head, 1), FREE, callback=callback)
    assert ((await pair.producer.stats()).live, pair.producer.waiting) == (0, 0)


async def test_who_still_waits_when_the_process_stops_is_told_so_once(pair: Pair) -> None:
    told, ended, late = Told(), Told(), Told()
    await pair.producer.submit(pair.req(), FREE, callback=ended)
    await pair.answer(await pair.claimed())
    await until(lambda: ended.ends == ["finished"])
    req = pair.req()
    await pair.producer.submit(req, FREE, watch=True, callback=told)
    waiting = asyncio.create_task(pair.producer.wait(req.id, 60))
    await asyncio.sleep(0)
    await pair.producer.close()
    assert told.ends == ["draining"], "before close returns"
    with pytest.raises(Draining, match="stays queued"):
        await waiting
    snapshot = await pair.producer.peek(req.id)
    assert snapshot is not None
    assert snapshot.record is not None, "the request itself goes on"
    await pair.producer.submit(pair.req(), FREE, callback=late)
    await until(lambda: late.ends == ["draining"])
    await pair.producer.close()
    assert (told.ends, ended.ends, late.ends) == (["draining"], ["finished"], ["draining"])


async def test_a_callback_hears_that_the_broker_lost_a_list(pair: Pair, broker_url: str) -> None:
    told, head = Told(), pair.req()
    await pair.producer.submit_list(head, pair.children(head, 1), FREE, callback=told)
    client = redis.Redis.from_url(broker_url)
    client.delete(*client.scan_iter(f"{Keys(pair.settings.queue_name).prefix}*"))
    client.close()
    await until(lambda: bool(told.all))
    (error,) = told.all
    assert isinstance(error, BrokerLost)
