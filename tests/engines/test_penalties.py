"""Penalties of the transformers engine: vLLM's arithmetic, and padding that counts nowhere."""

from __future__ import annotations

from typing import Any

import pytest

from shared.sampling import SamplingParams
from worker.engines.penalties import Penalties

PAD = 0


def penalised(
    prompt: list[list[int]], mask: list[list[int]], new: list[list[int]], **fields: Any
) -> Any:
    """Scores of 2 and, for the last token, -2, after the penalties."""
    import torch

    ids, seen = torch.tensor(prompt), torch.tensor(mask)
    penalties = Penalties(SamplingParams(max_tokens=9, **fields), ids, seen)
    scores = torch.full((len(prompt), 6), 2.0)
    scores[:, 5] = -2.0
    made = torch.tensor(new, dtype=torch.long).reshape(len(prompt), -1)
    return penalties(torch.cat((ids, made), dim=1), scores).tolist()


def test_repetition_counts_prompt_and_output_and_no_padding() -> None:
    rows = penalised([[PAD, 1], [2, 5]], [[0, 1], [1, 1]], [[3], [3]], repetition_penalty=2.0)
    assert rows[0] == [2, 1, 2, 1, 2, -2]
    assert rows[1] == [2, 2, 1, 1, 2, -4]


def test_frequency_and_presence_count_the_output_alone() -> None:
    [row] = penalised([[1, 2]], [[1, 1]], [[3, 3]], frequency_penalty=0.5, presence_penalty=0.25)
    assert row == pytest.approx([2, 2, 2, 0.75, 2, -2])


def test_before_the_first_token_only_the_prompt_counts() -> None:
    [row] = penalised([[1, 2]], [[1, 1]], [[]], repetition_penalty=2.0, frequency_penalty=1.0)
    assert row == [2, 1, 1, 2, 2, -2]
