"""Frequency and presence penalties as vLLM counts them, over the output alone: transformers has neither."""

from __future__ import annotations

from typing import Any

from shared.sampling import SamplingParams


class Penalties:
    """A logits processor of one call whose prompts are `width` tokens long, padding included."""

    def __init__(self, params: SamplingParams, width: int) -> None:
        self._params = params
        self._width = width

    @staticmethod
    def are_asked(params: SamplingParams) -> bool:
        return (params.frequency_penalty, params.presence_penalty) != (0, 0)

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        """`input_ids` is [rows, width + new], `scores` [rows, vocabulary]; gives the new scores."""
        import torch

        new = input_ids[:, self._width :]
        counts = torch.zeros_like(scores)
        counts.scatter_add_(1, new, torch.ones_like(new, dtype=scores.dtype))
        params = self._params
        return scores - params.frequency_penalty * counts - params.presence_penalty * (counts > 0)
