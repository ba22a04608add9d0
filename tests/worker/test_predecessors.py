"""A chain at the worker: the answers of predecessors are in the prompt that the engine sees."""

from __future__ import annotations

import pytest

from shared.errors import SluiceError
from shared.postprocess import STRIP_ONLY
from shared.request import Delivery, Trim
from shared.sampling import SamplingParams
from shared.status import ReqStatus
from tests.worker.scripted_engine import ScriptedEngine
from tests.worker.serving import Service


async def test_the_engine_sees_the_answer_of_a_predecessor(service: Service) -> None:
    engine = ScriptedEngine()
    async with service.worker(engine):
        first = (await service.ask("one")).id
        waits = await service.submit(f"say {{{{{first}.text}}}} twice", depends_on=(first,))
        answer = await service.producer.wait(waits, 15)
    assert answer.body is not None
    assert any("say A(one) twice" in text for call in engine.calls for text in call)


async def test_a_chain_that_waits_runs_in_its_order(service: Service) -> None:
    rids = [await service.submit("0")]
    for i in range(1, 5):
        prompt = f"{i}<{{{{{rids[-1]}.text}}}}>"
        rids.append(await service.submit(prompt, depends_on=(rids[-1],)))
    async with service.worker(ScriptedEngine()):
        answer = await service.producer.wait(rids[-1], 15)
    assert answer.body is not None
    assert answer.body.text == "A(4<A(3<A(2<A(1<A(0)>)>)>)>)"


async def test_what_is_repeated_is_what_the_client_of_the_predecessor_sees(
    service: Service,
) -> None:
    engine = ScriptedEngine()
    trim = Trim(cut_examples=False, max_sentences=1)
    async with service.worker(engine):
        first = (await service.ask("一。二。三。", delivery=Delivery(trim=trim))).id
        await service.ask(f"<{{{{{first}.text}}}}>", depends_on=(first,))
        second = (await service.ask("  x  ", delivery=Delivery(trim=STRIP_ONLY))).id
        await service.ask(f"<{{{{{second}.text}}}}>", depends_on=(second,))
    assert [text for call in engine.calls for text in call if text.startswith("<")] == [
        "<A(一。>",
        "<A(  x  )>",
    ]


async def test_an_inserted_text_is_neither_filled_nor_echoed_as_a_placeholder(
    service: Service,
) -> None:
    params = SamplingParams(max_tokens=8, min_tokens=0, echo=True)
    async with service.worker(ScriptedEngine()):
        first = (await service.ask("{{q.text}}")).id
        prompt = f"{{{{{first}.text}}}}"
        answer = await service.ask(prompt, depends_on=(first,), sampling=params)
    assert answer.body is not None
    assert answer.body.text == "A({{q.text}})A(A({{q.text}}))"


async def test_an_answer_that_is_gone_ends_who_repeats_it_and_no_one_else(
    service: Service,
) -> None:
    async with service.worker(ScriptedEngine()):
        first = (await service.ask("one")).id
    repeats = await service.submit(f"<{{{{{first}.text}}}}>", depends_on=(first,))
    follows = await service.submit("after it", depends_on=(first,))
    await service.producer.drop(first)
    async with service.worker(ScriptedEngine()):
        answer = await service.producer.wait(repeats, 15)
        other = await service.producer.wait(follows, 15)
    assert (answer.outcome.status, answer.outcome.code) == (ReqStatus.ERROR, "dependency_failed")
    assert other.outcome.status is ReqStatus.FINISHED


async def test_the_length_is_that_of_the_filled_prompt(service: Service) -> None:
    engine = ScriptedEngine()
    async with service.worker(engine):
        first = (await service.ask("x" * 50)).id
        prompt = f"{{{{{first}.text}}}}" * 2
        answer = await service.ask(prompt, depends_on=(first,))
    assert answer.outcome.code == "prompt_too_long"


async def test_a_failure_is_told_down_the_chain(service: Service) -> None:
    first = await service.submit("one")
    second = await service.submit("two", depends_on=(first,))
    third = await service.submit("three", depends_on=(second,))
    await service.producer.cancel(first)
    for rid in (second, third):
        answer = await service.producer.wait(rid, 15)
        assert answer.outcome.code == "dependency_failed"
    with pytest.raises(SluiceError, match="no such single request"):
        await service.submit("four", depends_on=("q.0-never",))
