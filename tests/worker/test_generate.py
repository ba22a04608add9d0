"""One micro-batch: how each request of it ends, whatever the engine, its prompt or its time do."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

from shared.errors import Busy, EngineDead
from shared.queue.claiming import Grant
from shared.request import Message, Req
from shared.sampling import SamplingParams
from tests.worker.scripted_engine import PlainPrompts, ScriptedEngine
from tests.worker.serving import Service, until
from worker.batcher import Item, MicroBatch
from worker.engines.base import (
    Capabilities,
    EngineOutput,
    EnginePrompt,
    PromptTooLong,
)
from worker.generate import lacking
from worker.prompt import LONG_CHARS
from worker.running import Running, Stop, echoed
from worker.think import Thinking

EVERY = frozenset(SamplingParams.__struct_fields__)
GREEDY = SamplingParams(max_tokens=8, min_tokens=0, temperature=0)


class Fragile(ScriptedEngine):
    """`break …` makes the whole call fail, as a fault in an engine's adapter does."""

    async def generate(
        self, prompts: Sequence[EnginePrompt], params: SamplingParams, *, stream: bool
    ) -> AsyncIterator[EngineOutput]:
        if any(prompt.text.startswith("break") for prompt in prompts):
            self.calls.append([prompt.text for prompt in prompts])
            raise RuntimeError("a fault that spares nobody")
        async for piece in super().generate(prompts, params, stream=stream):
            yield piece


class Refusing(ScriptedEngine):
    """Every request fails alone, with the error of its turn; after those it is answered."""

    def __init__(self, *errors: Exception) -> None:
        super().__init__()
        self.errors = list(errors)

    async def generate(
        self, prompts: Sequence[EnginePrompt], params: SamplingParams, *, stream: bool
    ) -> AsyncIterator[EngineOutput]:
        async for piece in super().generate(prompts, params, stream=stream):
            yield EngineOutput(piece.request_id, error=self.errors.pop(0)) if self.errors else piece


class Deaf(ScriptedEngine):
    """Does not hear the first abort, as one that comes before it has taken the request in."""

    async def abort(self, request_ids: Sequence[str]) -> None:
        if self.aborted:
            await super().abort(request_ids)
        else:
            self.aborted += request_ids


class SlowPrompts(PlainPrompts):
    """Builds a prompt only when `ready` is set."""

    def __init__(self) -> None:
        self.building: set[str] = set()
        self.ready = asyncio.Event()

    async def build(self, req: Req, max_model_len: int) -> EnginePrompt:
        self.building.add(req.id)
        await self.ready.wait()
        return await super().build(req, max_model_len)


@pytest.fixture
async def short_of_tries(broker_url: str, queue_name: str) -> AsyncIterator[Service]:
    service = Service(broker_url, queue_name, max_attempts=1)
    await service.producer.start()
    yield service
    await service.close()


async def test_who_breaks_a_whole_batch_breaks_it_for_itself_alone(short_of_tries: Service) -> None:
    service = short_of_tries
    engine = Fragile()
    ids = [await service.submit(text) for text in ("a", "break it", "b")]
    async with service.worker(engine):
        outcomes = [(await service.producer.wait(rid, 15)).outcome for rid in ids]
    assert [outcome.code for outcome in outcomes] == ["", "attempts_exhausted", ""]
    assert [outcome.attempts for outcome in outcomes] == [0, 1, 0]
    assert engine.calls[1:] == [["a"], ["break it"], ["b"]]


async def test_the_engines_refusal_keeps_its_code_and_is_not_tried_again(service: Service) -> None:
    engine = Refusing(PromptTooLong("13 tokens too many"))
    async with service.worker(engine):
        outcome = (await service.ask("long")).outcome
    assert (outcome.code, outcome.message) == ("prompt_too_long", "13 tokens too many")
    assert len(engine.calls) == 1


async def test_what_another_try_may_mend_is_tried_again(service: Service) -> None:
    async with service.worker(Refusing(Busy("no room for its cache"))):
        answer = await service.ask("x")
    assert answer.body is not None
    assert answer.outcome.attempts == 1


async def test_an_engine_that_tells_of_its_death_in_a_piece_is_dead(service: Service) -> None:
    rid = await service.submit("x")
    async with service.worker(Refusing(EngineDead("it is gone"))) as (_, task):
        assert await asyncio.wait_for(task, 5) == 1
    assert (await service.record(rid)).crashes == 1


async def test_an_abort_that_came_too_early_is_repeated(service: Service) -> None:
    engine = Deaf()
    async with service.worker(engine):
        answer = await service.ask("hold on", timeout_s=0.3)
    assert answer.outcome.code == "deadline_exceeded"
    assert engine.aborted == [answer.id, answer.id]


async def test_what_was_cancelled_while_its_prompt_was_built_is_never_run(service: Service) -> None:
    engine, prompts = ScriptedEngine(), SlowPrompts()
    async with service.worker(engine, prompts=prompts):
        rid = await service.submit("not any more")
        await until(lambda: rid in prompts.building)
        await service.producer.cancel(rid)
        outcome = (await service.producer.wait(rid, 5)).outcome
        other = await service.submit("still wanted")
        await until(lambda: other in prompts.building)
        await asyncio.sleep(1.2)  # a beat tells the worker at the latest
        prompts.ready.set()
        assert (await service.producer.wait(other, 5)).body is not None
    assert outcome.status == "cancelled"
    assert engine.calls == [["still wanted"]]


async def test_a_deadline_that_passes_before_the_engine_is_one_all_the_same(
    service: Service,
) -> None:
    engine, prompts = ScriptedEngine(), SlowPrompts()
    async with service.worker(engine, prompts=prompts):
        rid = await service.submit("late", timeout_s=0.3)
        await until(lambda: rid in prompts.building)
        await asyncio.sleep(0.5)
        prompts.ready.set()
        assert (await service.producer.wait(rid, 5)).outcome.code == "deadline_exceeded"
    assert engine.calls == []


async def test_what_is_still_being_prepared_goes_back_at_a_stop(service: Service) -> None:
    engine, prompts = ScriptedEngine(), SlowPrompts()
    async with service.worker(engine, prompts=prompts) as (loop, task):
        rid = await service.submit("too late")
        await until(lambda: rid in prompts.building)
        loop.stop()
        prompts.ready.set()
        assert await asyncio.wait_for(task, 5) == 0
    record = await service.record(rid)
    assert (record.state, record.crashes, record.attempts) == ("Q", 0, 0)
    assert engine.calls == []


async def test_a_result_that_is_there_is_offered_though_its_lease_was_lost(
    service: Service,
) -> None:
    """After a lost lease the result still counts while nobody else has claimed the request."""

    class Finishing(ScriptedEngine):
        async def abort(self, request_ids: Sequence[str]) -> None:
            self.let_go()  # the last piece was on its way already

    engine = Finishing()
    async with service.worker(engine) as (loop, _):
        rid = await service.submit("hold on")
        await until(lambda: "hold on" in engine.running_texts)
        loop._generator.stop([rid], Stop.LOST)
        assert (await service.producer.wait(rid, 5)).body is not None


async def test_a_field_that_the_engine_lacks_is_refused_by_name(service: Service) -> None:
    engine = ScriptedEngine()
    engine.capabilities = Capabilities(EVERY - {"logprobs"}, can_abort=True, can_stream=False)
    params = SamplingParams(max_tokens=8, min_tokens=0, logprobs=3)
    async with service.worker(engine):
        outcome = (await service.ask("x", sampling=params)).outcome
        adapter = (await service.ask("x", lora="mine")).outcome
    assert outcome.code == "unsupported_parameter"
    assert outcome.message == "logprobs: scripted cannot do it"
    assert (adapter.code, adapter.message) == (
        "unsupported_parameter",
        "lora: scripted cannot do it",
    )
    assert engine.calls == []


@pytest.mark.parametrize("name", sorted(EVERY - {"max_tokens", "echo"}))
def test_every_field_that_asks_for_something_is_missed(name: str) -> None:
    asking: dict[str, Any] = {
        "min_tokens": 1,
        "stop": ("x",),
        "stop_token_ids": (1,),
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 5,
        "repetition_penalty": 1.1,
        "frequency_penalty": 0.1,
        "presence_penalty": 0.1,
        "skip_special_tokens": False,
        "logprobs": 0,
        "seed": 0,
        "ignore_eos": True,
    }
    quiet = SamplingParams(max_tokens=8, min_tokens=0)
    loud = SamplingParams(**{"max_tokens": 8, "min_tokens": 0, name: asking[name]})
    assert lacking(loud, EVERY - {name}) == name
    assert lacking(loud, EVERY) is None
    assert lacking(quiet, EVERY - {name}) is None


async def test_the_tokens_of_long_reasoning_are_counted_beside_the_loop() -> None:
    """A tokenizer takes half a second for a megabyte: nobody else's beat is to wait for it."""
    threads: list[threading.Thread] = []

    def count(text: str) -> int:
        threads.append(threading.current_thread())
        return 7

    req = Req(id="q.0-a", sampling=GREEDY, bucket_key="b", digest="d", prompt="q")
    item = Item(Grant(req.id, "t", 0, 1, 0, 1, [], b""), req, 0.0)
    batch = MicroBatch("w-1", GREEDY, (item,))
    for text in ("short", "long " * LONG_CHARS):
        run = Running(item, batch, EnginePrompt(req.id, (1,)), Thinking(count=count))
        run.take(EngineOutput(req.id, f"<think>{text}</think>yes", tuple(range(9))))
        await run.count_reasoning()
        assert run.report("any", None, None).usage.reasoning_tokens == 7
    assert threads[0] is threading.main_thread() is not threads[1]


def test_greedy_needs_nothing_that_chance_needs() -> None:
    params = SamplingParams(max_tokens=8, min_tokens=0, temperature=0, top_p=0.5, top_k=3, seed=1)
    assert lacking(params, EVERY - {"top_p", "top_k", "seed"}) is None


def test_an_echo_holds_no_words_but_the_clients_own() -> None:
    common: dict[str, Any] = {
        "id": "q.0-a",
        "sampling": GREEDY,
        "bucket_key": "b",
        "digest": "d",
    }
    asked = Req(**common, prompt="Why?", system_prompt="a secret")
    turns = (Message("system", "a secret"), Message("user", "Why?"))
    assert echoed(asked) == "Why?"
    assert echoed(Req(**common, messages=turns, system_prompt="a secret")) == "Why?"


async def test_an_echo_stands_before_the_answer(service: Service) -> None:
    params = SamplingParams(max_tokens=8, min_tokens=0, echo=True)
    async with service.worker(ScriptedEngine()):
        answer = await service.ask("why? ", sampling=params)
    assert answer.body is not None
    assert answer.body.text == "why? A(why? )"
