"""What transformers is told: everything that it has a word for, and nothing left to its defaults."""

from __future__ import annotations

from typing import Any

import pytest

from shared.sampling import SamplingParams
from worker.engines.hf_options import end_options, generation_options
from worker.engines.stop_tokens import Stops, built_stops

PLAIN = {"max_new_tokens": 16, "min_new_tokens": 1, "repetition_penalty": 1.0}


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ({}, {"do_sample": True, "temperature": 1.0, "top_p": 1.0, "top_k": 0}),
        (
            {"temperature": 0.7, "top_k": 40, "top_p": 0.9},
            {"do_sample": True, "temperature": 0.7, "top_p": 0.9, "top_k": 40},
        ),
        ({"temperature": 0}, {"do_sample": False, "top_p": 1.0, "top_k": 0}),
        ({"temperature": 0, "top_k": 9}, {"do_sample": False, "top_p": 1.0, "top_k": 0}),
        (
            {"temperature": 0, "repetition_penalty": 2, "min_tokens": 3},
            {
                "do_sample": False,
                "top_p": 1.0,
                "top_k": 0,
                "repetition_penalty": 2.0,
                "min_new_tokens": 3,
            },
        ),
    ],
)
def test_a_temperature_of_zero_draws_nothing_and_top_k_is_never_left_out(
    asked: dict[str, Any], told: dict[str, Any]
) -> None:
    assert generation_options(SamplingParams(max_tokens=16, **asked)) == {**PLAIN, **told}


def test_a_requests_own_ids_are_ends_beside_the_models() -> None:
    params = SamplingParams(max_tokens=1, stop_token_ids=(6, 5))
    assert end_options(built_stops(params, ()), {9, 5}) == {"eos_token_id": [5, 6, 9]}
    assert end_options(Stops(), {9}) == {"eos_token_id": [9]}
    assert end_options(Stops(), ()) == {}


@pytest.mark.filterwarnings("ignore")  # transformers warns while it is imported
def test_transformers_knows_every_word_of_it() -> None:
    transformers = pytest.importorskip("transformers")
    known = transformers.GenerationConfig().to_dict()
    told = generation_options(SamplingParams(max_tokens=1)) | end_options(Stops(), {9})
    assert told.keys() <= known.keys()
