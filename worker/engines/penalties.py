"""The three penalties as vLLM counts them, for transformers: repetition over prompt and output, the others
over output alone. Padding counts nowhere, as it would with transformers' own repetition penalty.
"""

from __future__ import annotations

from typing import Any

from shared.sampling import SamplingParams


class Penalties:
    """A logits processor of one call. `prompt_ids` and `mask` are [rows, width], padded on the left."""

    def __init__(self, params: SamplingParams, prompt_ids: Any, mask: Any) -> None:
        self._params = params
        self._prompt_ids = prompt_ids
        self._mask = mask
        self._width = prompt_ids.shape[1]
        self._in_prompt: Any = None

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        """`input_ids` is [rows, width + new], `scores` [rows, vocabulary]; gives the new scores."""
        import torch

        params = self._params
        new = input_ids[:, self._width :]
        counts = torch.zeros_like(scores)
        counts.scatter_add_(1, new, torch.ones_like(new, dtype=scores.dtype))
        if params.repetition_penalty != 1:
            seen = (counts > 0) | self._prompt(scores)
            factor = params.repetition_penalty
            scores = torch.where(
                seen, torch.where(scores > 0, scores / factor, scores * factor), scores
            )
        return scores - params.frequency_penalty * counts - params.presence_penalty * (counts > 0)

    def _prompt(self, scores: Any) -> Any:
        """[rows, vocabulary]: which tokens the prompt has; made once."""
        if self._in_prompt is None:
            import torch

            counts = torch.zeros_like(scores)
            counts.scatter_add_(1, self._prompt_ids, self._mask.to(scores.dtype))
            self._in_prompt = counts > 0
        return self._in_prompt
