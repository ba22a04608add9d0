"""Reasoning blocks: what is taken out and what is kept; the recorded cases are among the vectors."""

from __future__ import annotations

import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.request import Delivery, FinishReason
from shared.sampling import SamplingParams
from tests.worker.scripted_engine import PlainPrompts, ScriptedEngine
from tests.worker.serving import Service
from worker.engines.base import EngineOutput, EnginePrompt
from worker.think import Tags, Thinking, opens_block, split_think, strip_think


def test_reasoning_is_kept_apart_from_the_answer() -> None:
    found = split_think("<think> two and two </think>\n4")
    assert (found.text, found.reasoning) == ("4", "two and two")


def test_reasoning_that_had_to_be_the_answer_is_not_told_twice() -> None:
    found = split_think("<think>cut at the budg")
    assert (found.text, found.reasoning) == ("cut at the budg", None)


def test_a_block_opened_by_the_template_goes_with_its_later_blocks() -> None:
    found = split_think("first</think> Yes. <think>second</think>", template_opens=True)
    assert (found.text, found.reasoning) == ("Yes.", "first\nsecond")


def test_an_answer_cut_inside_a_block_that_the_template_opened_is_given_as_it_is() -> None:
    assert split_think("still thinking", template_opens=True).text == "still thinking"


def test_an_opener_in_a_block_that_the_template_opened_is_not_shown() -> None:
    found = split_think("use <think> here", template_opens=True)
    assert (found.text, found.has_answer) == ("use  here", False)


inner = st.text(alphabet="ab <>/\n")


@given(st.lists(inner, max_size=3), inner, st.booleans())
def test_no_tag_is_shown_of_a_text_that_begins_with_a_block(
    blocks: list[str], answer: str, opens: bool
) -> None:
    text = "".join(f"<think>{block}</think>" for block in blocks) + answer
    found = split_think(text, template_opens=opens)
    assert "<think>" not in found.text
    if found.has_answer:
        assert found.text == answer.strip()


def test_a_literal_opener_inside_a_line_survives() -> None:
    text = "Write <think> before the reasoning."
    assert strip_think(text) == text


@pytest.mark.parametrize(
    "text",
    [
        "Use `<think>` and `</think>` tags.",
        'Write "<think>two and two</think>" first.',
        "Write ``<think>x</think>`` first.",
        "“<think>”和“</think>”成对出现。",
        "思考写在「<think>…</think>」里。",
    ],
)
def test_what_is_spoken_of_in_quotes_survives(text: str) -> None:
    assert strip_think(text) == text
    found = split_think(f"<think>a {text} b</think>{text}")
    assert (found.text, found.reasoning) == (text, f"a {text} b")
    assert strip_think(f"a</think>{text}", template_opens=True) == text


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ('<think>say "yes"</think>"Yes"', '"Yes"'),
        ("<think>a lone ` here</think>`code`", "`code`"),
        ('<think>a "b\n</think>"c"', '"c"'),
    ],
)
def test_quotes_on_both_sides_of_a_tag_that_belong_to_others_hide_nothing(
    text: str, answer: str
) -> None:
    assert strip_think(text) == answer


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("<think>a</think>Answer mentions </think> tag", "Answer mentions </think> tag"),
        ("<think>a</think>It ends with </think>.", "It ends with </think>."),
        ("<think>a</think> </think> b", "b"),
        ("<think>a</think>b</think>c", "c"),
        ("<think>a <think> b </think> c </think> d", "d"),
        ("x</think><think>a</think>y", "y"),
    ],
)
def test_a_closer_between_words_is_one_of_them_and_other_stray_ones_end_reasoning(
    text: str, answer: str
) -> None:
    assert strip_think(text) == answer


@pytest.mark.parametrize("piece", ['"', "“a", "`<think>", '"a <think>', "`</think> ", 'a"b '])
def test_many_quotes_take_no_time(piece: str) -> None:
    began = time.monotonic()
    strip_think("<think>" + piece * 100_000)
    assert time.monotonic() - began < 5


@pytest.mark.parametrize("opened", [True, False])
def test_a_long_text_without_tags_takes_no_time(opened: bool) -> None:
    text = "a < b " * 100_000
    assert strip_think(text, template_opens=opened) == text.strip()


def test_many_openers_take_no_time() -> None:
    """A pattern that looks for the closer again from every opener would need minutes here."""
    text = "<think> " * 20_000
    assert "<think>" not in strip_think(text)


def test_other_tags() -> None:
    tags = Tags("[THINK]", "[/THINK]")
    assert strip_think("[think]a[/THINK]b <think>", tags=tags) == "b <think>"


@pytest.mark.parametrize(
    ("prompt", "opens"),
    [
        ("<|im_start|>assistant\n<think>\n", True),
        ("<|im_start|>assistant\n<THINK>", True),
        ("<|im_start|>assistant\n<think>\n\n</think>\n\n", False),
        ("<|im_start|>assistant\n", False),
    ],
)
def test_whether_a_prompt_ends_inside_a_block(prompt: str, opens: bool) -> None:
    assert opens_block(prompt) is opens


# --- what reasoning costs


@pytest.mark.parametrize(
    ("text", "opens", "spent"),
    [
        ("no block at all", False, ""),
        ("<think>one</think>answer", False, "<think>one</think>"),
        ("<think>\n\n</think>\n\nanswer", False, "<think>\n\n</think>"),
        ("one</think>answer", True, "one</think>"),
        ("one</think>two</think>answer", True, "one</think>two</think>"),
        ("answer\n<think>cut", False, "<think>cut"),
    ],
)
def test_what_was_written_as_reasoning(text: str, opens: bool, spent: str) -> None:
    found = split_think(text, template_opens=opens)
    assert (found.spent, found.has_answer) == (spent, True)
    assert Thinking().tokens(found, 1000) == len(spent)


@pytest.mark.parametrize(
    ("text", "opens"),
    [
        ("<think>cut at the budg", False),
        ("still thinking", True),
        ("<think>all of it</think>", False),
        ("", True),
    ],
)
def test_where_there_is_nothing_but_reasoning_every_token_went_into_it(
    text: str, opens: bool
) -> None:
    found = split_think(text, template_opens=opens)
    assert not found.has_answer
    assert Thinking().tokens(found, 32) == 32


def test_reasoning_never_costs_more_than_all_there_was() -> None:
    """A model may write a text in fewer tokens than the tokenizer would."""
    assert Thinking().tokens(split_think("<think>one</think>answer"), 5) == 5


# --- through a worker


class Reasoner(ScriptedEngine):
    """Says the prompt, one token a character, up to its budget."""

    async def _one(self, prompt: EnginePrompt, done: Any) -> None:
        said = prompt.text.removesuffix(OPENER)[: self.params[-1].max_tokens]
        is_cut = len(said) == self.params[-1].max_tokens
        reason = FinishReason.length if is_cut else FinishReason.stop
        done.put_nowait(EngineOutput(prompt.request_id, said, tuple(range(len(said))), reason))


OPENER = "[THINK]\n"


class OtherTags(PlainPrompts):
    thinking = Thinking(Tags("[THINK]", "[/THINK]"))


async def say(service: Service, text: str, budget: int = 99, **fields: Any) -> Any:
    sampling = SamplingParams(max_tokens=budget, min_tokens=0)
    async with service.worker(Reasoner(), prompts=OtherTags()):
        return await service.ask(text, sampling=sampling, **fields)


async def test_reasoning_is_apart_from_the_answer_and_counted(service: Service) -> None:
    answer = await say(service, "[THINK]two and two[/THINK]4")
    assert (answer.body.text, answer.body.reasoning) == ("4", "two and two")
    usage = answer.outcome.report.usage
    assert (usage.completion_tokens, usage.reasoning_tokens) == (27, 26)


async def test_a_budget_eaten_by_reasoning_is_told(service: Service) -> None:
    answer = await say(service, "[THINK]two and two", 12, delivery=Delivery(route="short"))
    report = answer.outcome.report
    assert report.finish_reason is FinishReason.length
    assert (answer.body.text, answer.body.reasoning) == ("two a", None)
    assert report.usage.reasoning_tokens == report.usage.completion_tokens == 12


async def test_a_prompt_that_ends_with_the_opener_is_answered_with_reasoning(
    service: Service,
) -> None:
    answer = await say(service, f"hm[/THINK]yes{OPENER}")
    assert (answer.body.text, answer.body.reasoning) == ("yes", "hm")
    assert answer.outcome.report.usage.reasoning_tokens == len("hm[/THINK]")


async def test_an_answer_without_reasoning_tells_of_none(service: Service) -> None:
    answer = await say(service, "a plain <think> answer")
    assert (answer.body.text, answer.body.reasoning) == ("a plain <think> answer", None)
    assert answer.outcome.report.usage.reasoning_tokens == 0
