"""A text on its way from a worker to its readers, both halves over the real broker: none is spliced, none is short."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
import redis

from shared.errors import BrokerLost, BrokerUnavailable, Draining
from shared.queue.assembler import Reset, Text
from shared.queue.streams import KEPT, End, Event
from tests.queue.pair import FREE, Pair, pair_on, until

WORDS = [f"wörd{i} 𝄞 " for i in range(40)]
WHOLE = "".join(WORDS)


class Reading:
    """Reads a stream in the background, as a client shows it: appended, and anew after a reset."""

    def __init__(self, pair: Pair, rid: str, after: tuple[int, int] | None = None) -> None:
        self.text = ""
        self.place = after or (0, 0)
        self.resets: list[int] = []
        self.end: End | None = None
        self._base = self.place[1]
        self.task = asyncio.create_task(self._read(pair.producer.stream(rid, after)))

    async def _read(self, events: AsyncIterator[Event]) -> None:
        async for event in events:
            if isinstance(event, End):
                self.end = event
            elif isinstance(event, Reset):
                self.resets.append(event.attempt)
                self.text, self._base = "", 0
            else:
                assert event.offset == self._base + len(self.text), "a gap or a repetition"
                self.text += event.text
                self.place = (event.attempt, event.offset + len(event.text))

    async def until(self, text: str) -> None:
        await until(lambda: self.text == text or self.task.done())
        assert self.text == text

    async def ended(self) -> End:
        async with asyncio.timeout(20):
            await self.task
        assert self.end is not None
        return self.end


@pytest.fixture
async def client(broker_url: str) -> AsyncIterator[Any]:
    client: Any = redis.Redis.from_url(broker_url)
    yield client
    client.close()


async def test_a_text_is_read_as_it_grows_and_ends_with_its_answer(pair: Pair) -> None:
    req = pair.req()
    await pair.producer.submit(req, FREE, watch=True)
    reading = Reading(pair, req.id)
    grant = await pair.claimed()
    emission = pair.consumer.emission(grant)
    await pair.say(emission, *WORDS[:3])
    await reading.until("".join(WORDS[:3]))
    await pair.say(emission, *WORDS[3:20])
    await pair.finish(grant, WHOLE)  # what was not emitted comes with the answer
    answer = (await reading.ended()).answer
    assert answer.body is not None
    assert reading.text == answer.body.text == WHOLE
    assert reading.resets == []
    pair.producer.unwatch(req.id)
    assert pair.producer.waiting == 0


async def test_all_readers_of_one_id_in_two_processes_get_every_chunk_and_the_notice(
    pair: Pair, broker_url: str
) -> None:
    req = pair.req()
    await pair.producer.submit(req, FREE, watch=True)
    async with pair_on(broker_url, pair.settings.queue_name) as other:
        first = [Reading(pair, req.id), Reading(pair, req.id)]
        grant = await pair.claimed()
        emission = pair.consumer.emission(grant)
        await pair.say(emission, *WORDS[:10])
        # These come when the worker already knows its readers: it learns of them, and so they learn of the text.
        late = [Reading(other, req.id), Reading(other, req.id)]
        await late[1].until("".join(WORDS[:10]))
        await pair.say(emission, WORDS[10])
        for reading in (*first, *late):
            await reading.until("".join(WORDS[:11]))
        assert sorted(grant.apis) == sorted([pair.producer.api_id, other.producer.api_id])
        await pair.say(emission, *WORDS[11:])
        for reading in (*first, *late):
            await reading.until(WHOLE)
        await pair.finish(grant, WHOLE)
        for reading in (*first, *late):
            await reading.ended()
            assert (reading.text, reading.resets) == (WHOLE, [])


async def test_a_reader_goes_on_at_another_front_door_when_its_own_was_killed(
    pair: Pair, broker_url: str
) -> None:
    req = pair.req()
    async with pair_on(broker_url, pair.settings.queue_name) as other:
        await other.producer.submit(req, FREE, watch=True)
        grant = await pair.claimed()
        emission = pair.consumer.emission(grant)
        before = Reading(other, req.id)
        await pair.say(emission, *WORDS[:7])
        await before.until("".join(WORDS[:7]))
        before.task.cancel()
    await pair.say(emission, *WORDS[7:12])
    after = Reading(pair, req.id, before.place)
    # A client may have come less far than its last event: then it is cut there.
    cut = Reading(pair, req.id, (before.place[0], before.place[1] - 3))
    await after.until("".join(WORDS[7:12]))
    await pair.say(emission, *WORDS[12:])
    await pair.finish(grant, WHOLE)
    await after.ended()
    await cut.ended()
    assert before.text + after.text == WHOLE
    assert before.text[:-3] + cut.text == WHOLE
    # After the end too, from anywhere.
    again = Reading(pair, req.id, after.place)
    await again.ended()
    assert (again.text, again.resets) == ("", [])
    whole = Reading(pair, req.id)
    await whole.ended()
    assert whole.text == WHOLE


async def test_when_a_worker_dies_after_40_words_the_text_starts_anew(pair: Pair) -> None:
    req = pair.req()
    await pair.producer.submit(req, FREE, watch=True)
    reading = Reading(pair, req.id)
    grant = await pair.claimed()
    emission = pair.consumer.emission(grant)
    await pair.say(emission, *WORDS)
    await reading.until(WHOLE)
    await pair.consumer.suspect([grant], "its engine died")
    again = await pair.claimed()
    assert await pair.say(emission, "x") == [req.id]
    second = pair.consumer.emission(again)
    await pair.say(second, "Another ", "text")
    await reading.until("Another text")
    assert reading.resets == [2]
    returned = Reading(pair, req.id, (1, 17))
    await returned.until("Another text")
    await pair.finish(again, "Another text.")
    await reading.ended()
    await returned.ended()
    assert reading.text == returned.text == "Another text."
    assert returned.resets == [2]


async def test_an_attempt_that_said_nothing_before_it_won_takes_the_place_of_the_other(
    pair: Pair,
) -> None:
    req = pair.req()
    await pair.producer.submit(req, FREE, watch=True)
    reading = Reading(pair, req.id)
    grant = await pair.claimed()
    await pair.say(pair.consumer.emission(grant), "An answer th")
    await reading.until("An answer th")
    await pair.consumer.suspect([grant], "its engine died")
    await pair.finish(await pair.claimed(), "An answer")
    await reading.ended()
    assert (reading.text, reading.resets) == ("An answer", [2])


async def test_a_reader_that_stands_still_costs_a_bounded_buffer_and_misses_nothing(
    pair: Pair,
) -> None:
    req = pair.req()
    await pair.producer.submit(req, FREE, watch=True)
    grant = await pair.claimed()
    emission = pair.consumer.emission(grant)
    events = pair.producer.stream(req.id)
    await pair.say(emission, "start ")
    texts = [await anext(events)]
    other = Reading(pair, req.id)
    text = "start "
    for i in range(300):
        text += f"{i} " + "x" * 600
        pair.consumer.emit(emission, text[emission.offset :])
        await pair.consumer.flush()
    (slow, quick) = pair.producer._results.streams._readers[req.id]
    assert max(slow.size, quick.size) <= KEPT
    await other.until(text)
    await pair.finish(grant, text)
    texts += [event async for event in events if isinstance(event, Text)]
    assert "".join(event.text for event in texts if isinstance(event, Text)) == text
    await other.ended()
    assert other.text == text


@pytest.mark.parametrize("what", ["out", "part"])
async def test_a_stream_of_chunks_that_was_lost_is_made_good(
    pair: Pair, client: Any, what: str
) -> None:
    req = pair.req()
    await pair.producer.submit(req, FREE, watch=True)
    reading = Reading(pair, req.id)
    grant = await pair.claimed()
    emission = pair.consumer.emission(grant)
    await pair.say(emission, *WORDS[:5])
    await reading.until("".join(WORDS[:5]))
    name = f"out:{pair.producer.api_id}" if what == "out" else f"part:{req.id}"
    client.delete(f"sl:{{{pair.settings.queue_name}:0}}:{name}")
    await pair.say(emission, *WORDS[5:10])
    await reading.until("".join(WORDS[:10]))
    await pair.say(emission, *WORDS[10:])
    await pair.finish(grant, WHOLE)
    await reading.ended()
    assert (reading.text, reading.resets) == (WHOLE, [])


async def test_a_broker_that_comes_back_empty_splices_nothing(pair: Pair, client: Any) -> None:
    """The request is made again under its id, and its first attempt has the number of the one that was lost."""
    req = pair.req()
    await pair.producer.submit(req, FREE, watch=True)
    reading = Reading(pair, req.id)
    emission = pair.consumer.emission(await pair.claimed())
    await pair.say(emission, *WORDS[:5])
    await reading.until("".join(WORDS[:5]))
    for key in client.scan_iter(f"sl:{{{pair.settings.queue_name}:0}}*", 1000):
        client.delete(key)
    assert await pair.say(emission, WORDS[5]) == [req.id]
    grants: list[Any] = []
    async with asyncio.timeout(15):
        while not grants:
            grants = (await pair.consumer.claim(1, is_idle=True)).grants
            await asyncio.sleep(0.05)
    assert grants[0].grants == 1
    again = "Once more, and longer than it was before: " + WHOLE
    await pair.say(pair.consumer.emission(grants[0]), again[:300])
    await reading.until(again[:300])
    await pair.finish(grants[0], again)
    await reading.ended()
    assert (reading.text, reading.resets) == (again, [1])


async def test_what_a_full_broker_refuses_is_told_once_it_has_room(pair: Pair, client: Any) -> None:
    req = pair.req()
    await pair.producer.submit(req, FREE, watch=True)
    reading = Reading(pair, req.id)
    grant = await pair.claimed()
    emission = pair.consumer.emission(grant)
    await pair.say(emission, WORDS[0])
    client.config_set("maxmemory", 1)
    try:
        for word in WORDS[1:5]:
            pair.consumer.emit(emission, word)
            assert await pair.consumer.flush() == []
        assert emission.offset == len(WORDS[0])
    finally:
        client.config_set("maxmemory", 0)
    await pair.say(emission, *WORDS[5:])
    await reading.until(WHOLE)
    await pair.finish(grant, WHOLE)
    await reading.ended()
    assert reading.text == WHOLE


async def test_a_call_whose_reply_was_lost_is_sent_again_with_the_same_pieces(
    pair: Pair, client: Any
) -> None:
    req = pair.req()
    await pair.producer.submit(req, FREE, watch=True)
    reading = Reading(pair, req.id)
    grant = await pair.claimed()
    emission = pair.consumer.emission(grant)
    run = pair.consumer._line.run

    async def loses_the_reply(call: Any, **options: Any) -> Any:
        await run(call, **options)
        raise BrokerUnavailable("away")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pair.consumer._line, "run", loses_the_reply)
        pair.consumer.emit(emission, WORDS[0])
        assert await pair.consumer.flush() == []
    # More has come since, and far more than one piece.
    text = WORDS[0] + "𝄞x" * 10_000
    await pair.say(emission, text[len(WORDS[0]) :])
    await reading.until(text)
    pieces = client.xrange(f"sl:{{{pair.settings.queue_name}:0}}:part:{req.id}")
    assert "".join(fields[b"d"].decode() for _, fields in pieces) == text
    await pair.finish(grant, text)
    await reading.ended()
    assert reading.text == text


async def test_a_cancelled_text_ends_with_what_there_was(pair: Pair) -> None:
    req = pair.req()
    await pair.producer.submit(req, FREE, watch=True)
    reading = Reading(pair, req.id)
    emission = pair.consumer.emission(await pair.claimed())
    await pair.say(emission, *WORDS[:5])
    await pair.producer.cancel(req.id)
    assert await pair.say(emission, "x") == [req.id]
    assert (await reading.ended()).answer.outcome.status == "cancelled"
    later = Reading(pair, req.id)
    await later.ended()
    assert reading.text == later.text == "".join(WORDS[:5])


async def test_a_stream_of_an_id_that_nobody_knows_is_an_error(pair: Pair) -> None:
    reading = Reading(pair, pair.producer.new_id())
    with pytest.raises(BrokerLost):
        await reading.ended()
    assert pair.producer.waiting == 0


async def test_a_front_door_that_stops_tells_its_readers(broker_url: str, queue_name: str) -> None:
    async with pair_on(broker_url, queue_name) as pair:
        req = pair.req()
        await pair.producer.submit(req, FREE, watch=True)
        reading = Reading(pair, req.id)
        await pair.say(pair.consumer.emission(await pair.claimed()), WORDS[0])
        await reading.until(WORDS[0])
    with pytest.raises(Draining):
        await reading.ended()


async def test_many_texts_go_in_a_few_calls_over_a_few_connections(pair: Pair, client: Any) -> None:
    reqs = [pair.req(str(i)) for i in range(200)]
    await asyncio.gather(*(pair.producer.submit(req, FREE, watch=True) for req in reqs))
    readings = [Reading(pair, req.id) for req in reqs]
    grants = (await pair.consumer.claim(200, is_idle=True)).grants
    emissions = [pair.consumer.emission(grant) for grant in grants]
    for n in range(5):
        for emission in emissions:
            pair.consumer.emit(emission, f"{emission.id} {n} ")
        assert await pair.consumer.flush() == []
        assert not pair.consumer.has_unsent
    assert len(client.client_list()) <= 10
    finishing = (pair.finish(g, "".join(f"{g.id} {n} " for n in range(5))) for g in grants)
    await asyncio.gather(*finishing)
    for reading, req in zip(readings, reqs, strict=True):
        await reading.ended()
        assert reading.text == "".join(f"{req.id} {n} " for n in range(5))
