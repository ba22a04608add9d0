"""Our sampling parameters in transformers' words. Pure: knows no model.

What transformers has no word for is done beside it: stop strings by the rows (`hf_rows.py`), frequency and
presence by a logits processor (`penalties.py`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from shared.sampling import SamplingParams
from worker.engines.stop_tokens import Stops


def generation_options(params: SamplingParams) -> dict[str, Any]:
    """Keyword arguments of `model.generate`. `top_k` 0 is off; left out, transformers would take 50."""
    options: dict[str, Any] = {
        "max_new_tokens": params.max_tokens,
        "min_new_tokens": params.min_tokens,
        "do_sample": not params.is_greedy,
        "repetition_penalty": float(params.repetition_penalty),
    }
    if params.is_greedy:
        # Draws nothing. A temperature of 0 would be refused.
        return {**options, "top_p": 1.0, "top_k": 0}
    return {
        **options,
        "temperature": params.temperature,
        "top_p": params.top_p,
        "top_k": max(0, params.top_k),
    }


def end_options(stops: Stops, eos: Iterable[int]) -> dict[str, Any]:
    """The one argument of `model.generate` that names ids: a request's own are ends beside `eos`, those of the
    model that count for it. Nothing where no id ends an answer.
    """
    ends = sorted({*stops.ids, *eos})
    return {"eos_token_id": ends} if ends else {}
