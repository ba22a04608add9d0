"""Our words in vLLM's and back, with vLLM's own records and no engine."""

from __future__ import annotations

from typing import Any

import pytest

from shared.request import FinishReason
from shared.sampling import SamplingParams
from worker.engines.stop_tokens import StopRules, Stops
from worker.engines.vllm_terms import NativeParams, native_fields, native_params, piece_of

pytestmark = pytest.mark.filterwarnings("ignore")  # vLLM warns while it is imported

PLAIN = Stops()
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
    natives = NativeParams(StopRules(ends=(END, OTHER_END)))
    native, stops = natives.of(sampled(stop_token_ids=(ASKED,)), stream=False)
    native.update_from_generation_config({"eos_token_id": [END, OTHER_END]}, END)
    assert set(native.stop_token_ids) == {END, OTHER_END, ASKED}
    own, asked = (piece_of("r", ended(reason), stops) for reason in (OTHER_END, ASKED))
    assert (own.finish_reason, own.stop_reason) == (FinishReason.stop, None)
    assert (asked.finish_reason, asked.stop_reason) == (FinishReason.stop, ASKED)


def test_an_end_of_sequence_that_the_request_named_itself_is_told() -> None:
    """vLLM looks for it first, and then has no reason."""
    natives = NativeParams(StopRules(ends=(6,)))
    for ids, told in (((6,), 6), ((ASKED,), None), ((), None)):
        _, stops = natives.of(sampled(stop_token_ids=ids), stream=False)
        assert piece_of("r", ended(None), stops).stop_reason == told


def test_the_time_to_the_first_token_is_told_where_there_was_one() -> None:
    from vllm.v1.metrics.stats import RequestStateStats

    told = piece_of("r", ended(None, RequestStateStats(first_token_latency=0.25)), PLAIN)
    assert told.first_token_s == 0.25
    assert piece_of("r", ended(None, RequestStateStats()), PLAIN).first_token_s is None
    assert piece_of("r", ended(None), PLAIN).first_token_s is None


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ({}, {"temperature": 1.0, "top_p": 1.0, "top_k": 0, "max_tokens": 8, "min_tokens": 1}),
        ({"top_k": 40}, {"top_k": 40}),
        ({"stop": ("END",)}, {"stop": ["END"], "stop_token_ids": []}),
        (
            {"frequency_penalty": 0.5, "presence_penalty": 0.5},
            {"frequency_penalty": 0.5, "presence_penalty": 0.5},
        ),
    ],
)
def test_vllm_is_told_every_field_in_its_own_words(
    asked: dict[str, Any], told: dict[str, Any]
) -> None:
    params = sampled(**asked)
    fields = native_fields(params, StopRules().stops(params))
    assert {name: fields[name] for name in told} == told


@pytest.mark.parametrize("temperature", [0, 1e-7])
def test_greedy_stays_greedy(temperature: float) -> None:
    """vLLM would raise a small temperature to 0.01, and draw."""
    params = SamplingParams(max_tokens=8, temperature=temperature)
    assert native_fields(params, PLAIN)["temperature"] == 0


def test_one_object_serves_all_requests_of_a_bucket() -> None:
    natives = NativeParams(StopRules())
    assert natives.of(sampled(), stream=False)[0] is natives.of(sampled(), stream=False)[0]
    assert natives.of(sampled(), stream=True)[0] is not natives.of(sampled(), stream=False)[0]
