"""Penalties that transformers lacks: vLLM's arithmetic, over the output alone."""

from __future__ import annotations

from typing import Any

import pytest

from shared.sampling import SamplingParams
from worker.engines.penalties import Penalties


def penalised(prompt: list[list[int]], new: list[list[int]], **fields: Any) -> Any:
    """Scores of 2 and, for the last token, -2, after the penalties."""
    import torch

    ids = torch.tensor(prompt)
    penalties = Penalties(SamplingParams(max_tokens=9, **fields), ids.shape[1])
    scores = torch.full((len(prompt), 6), 2.0)
    scores[:, 5] = -2.0
    made = torch.tensor(new, dtype=torch.long).reshape(len(prompt), -1)
    return penalties(torch.cat((ids, made), dim=1), scores).tolist()


def test_frequency_and_presence_count_the_output_alone() -> None:
    rows = penalised(
        [[1, 2], [3, 3]], [[3, 3], [0, 5]], frequency_penalty=0.5, presence_penalty=0.25
    )
    assert rows[0] == pytest.approx([2, 2, 2, 0.75, 2, -2])
    assert rows[1] == pytest.approx([1.25, 2, 2, 2, 2, -2.75])


def test_before_the_first_token_there_is_nothing_to_count() -> None:
    [row] = penalised([[1, 2]], [[]], frequency_penalty=1.0, presence_penalty=1.0)
    assert row == [2, 2, 2, 2, 2, -2]


@pytest.mark.parametrize(
    ("fields", "are_asked"),
    [
        ({}, False),
        ({"repetition_penalty": 2.0}, False),  # transformers has that one
        ({"frequency_penalty": -0.1}, True),
        ({"presence_penalty": 0.1}, True),
    ],
)
def test_who_asks_for_neither_pays_for_neither(fields: dict[str, Any], are_asked: bool) -> None:
    assert Penalties.are_asked(SamplingParams(max_tokens=1, **fields)) is are_asked
