"""Reasoning blocks: the recorded cases of the first seed, and what its faults must not become again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from worker.think import Tags, opens_block, split_think, strip_think

VECTORS = json.loads(
    (Path(__file__).parents[1] / "vectors" / "data" / "strip_think_open.json").read_text("utf-8")
)["vectors"]


@pytest.mark.parametrize("vector", VECTORS, ids=[v["name"] for v in VECTORS])
def test_recorded_case(vector: dict[str, Any]) -> None:
    given = vector["input"]
    wanted = vector["right_output" if vector["verdict"] in ("bug", "spec") else "output"]
    assert strip_think(given["text"], template_opens=given["template_opens_think"]) == wanted


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


def test_a_literal_opener_inside_a_line_survives() -> None:
    text = "Write <think> before the reasoning."
    assert strip_think(text) == text


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
