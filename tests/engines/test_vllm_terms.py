"""Our words in vLLM's and back, with vLLM's own records and no engine."""

from __future__ import annotations

from typing import Any

import pytest

from shared.request import FinishReason
from shared.sampling import SamplingParams
from worker.engines.stop_tokens import Stops, split_stops
from worker.engines.vllm_terms import native_params, piece_of

pytestmark = pytest.mark.filterwarnings("ignore")  # vLLM warns while it is imported

PLAIN = Stops(strings=(), ids=(), named={})
END, OTHER_END, ASKED = 2, 8, 9


@pytest.fixture(autouse=True)
def vllm() -> Any:
    return pytest.importorskip("vllm")


def sampled(**fields: Any) -> SamplingParams:
    return SamplingParams(max_tokens=8, temperature=1.0, **fields)


def ended(stop_reason: str | int | None, metrics: Any = None) -> Any:
    """What vLLM gives back of a request that stopped after two tokens."""
    from vllm.outputs import CompletionOutput, RequestOutput

    made = CompletionOutput(
        index=0,
        text="hi",
        token_ids=[5, 6],
        cumulative_logprob=None,
        logprobs=None,
        finish_reason="stop",
        stop_reason=stop_reason,
    )
    return RequestOutput("r", None, [1], None, [made], finished=True, metrics=metrics)


@pytest.mark.parametrize("seed", [-1, 0, 7, -(2**63), 2**63 - 1])
def test_every_seed_is_a_seed_to_vllm(seed: int) -> None:
    native = native_params(sampled(seed=seed), PLAIN, stream=False)
    assert native.seed is not None
    assert native.seed == native_params(sampled(seed=seed), PLAIN, stream=False).seed
    assert native.seed == seed or seed == -1


def test_without_a_seed_vllm_is_given_none() -> None:
    assert native_params(sampled(), PLAIN, stream=False).seed is None


def test_an_end_of_the_model_has_no_reason_though_vllm_makes_it_a_stop_token() -> None:
    """As in models with an end of turn beside the end of sequence."""
    stops = split_stops((), (ASKED,), {})
    native = native_params(sampled(stop_token_ids=(ASKED,)), stops, stream=False)
    native.update_from_generation_config({"eos_token_id": [END, OTHER_END]}, END)
    assert set(native.stop_token_ids) == {OTHER_END, ASKED}
    own, asked = (piece_of("r", ended(reason), stops) for reason in (OTHER_END, ASKED))
    assert (own.finish_reason, own.stop_reason) == (FinishReason.stop, None)
    assert (asked.finish_reason, asked.stop_reason) == (FinishReason.stop, ASKED)


def test_the_time_to_the_first_token_is_told_where_there_was_one() -> None:
    from vllm.v1.metrics.stats import RequestStateStats

    told = piece_of("r", ended(None, RequestStateStats(first_token_latency=0.25)), PLAIN)
    assert told.first_token_s == 0.25
    assert piece_of("r", ended(None, RequestStateStats()), PLAIN).first_token_s is None
    assert piece_of("r", ended(None), PLAIN).first_token_s is None
