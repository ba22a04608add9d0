"""Question routing: the cases that the rules mend; the recorded ones are among the vectors."""

from __future__ import annotations

import pytest

from api.intake import trim_for
from api.routing import Route, Router
from shared.postprocess import postprocess
from tests.api.conftest import Load


@pytest.mark.parametrize(
    ("asked", "budget"), [(-5, 1), (0, 1), (50, 50), (4096, 4096), (9999, 4096)]
)
def test_an_override_skips_routing_and_is_clamped(
    asked: int, budget: int, load_settings: Load
) -> None:
    decision = Router(load_settings()).route("讲讲 gemm", asked)
    assert (decision.route, decision.budget_tokens) == (Route.override, budget)


@pytest.mark.parametrize(
    "prompt",
    [
        "__global__ void add(float *a) {}",
        "name<<<grid, block>>>(x)",
        "why does f<<<1, 2>>> fail?",
    ],
)
def test_genuine_kernel_syntax_is_hard_code(prompt: str, load_settings: Load) -> None:
    router = Router(load_settings())
    assert router.is_hard_code(prompt)
    assert router.is_code(prompt)


def test_the_marks_of_a_merge_conflict_are_no_kernel_launch(load_settings: Load) -> None:
    prompt = "<<<<<<< HEAD\nmine\n=======\ntheirs\n>>>>>>> branch"
    assert Router(load_settings()).route(prompt).route is Route.short


def test_two_spellings_of_one_rule_are_one_hit(load_settings: Load) -> None:
    router = Router(load_settings({"HARD_CODE_MIN_HITS": "2"}))
    assert not router.is_hard_code("kernel<<<1, 1>>>()")
    assert not router.is_hard_code("__global__ or global void")
    assert router.is_hard_code("__global__ void f() and f<<<1, 1>>>()")


def test_long_prompts_are_routed_in_linear_time(load_settings: Load) -> None:
    router = Router(load_settings())
    assert router.route("<<<" * 1_000_000).route is Route.short
    assert router.route("<<<\n" * 300_000 + ">>>").route is Route.short


def test_a_budget_of_the_callers_own_means_no_trimming(load_settings: Load) -> None:
    settings = load_settings()
    router = Router(settings)
    decision = router.route("什么是尾延迟", 1024)
    trim = trim_for(settings, router, "什么是尾延迟", decision, None)
    text = "一。二。三。四。五。六。七。例如：八。"
    assert postprocess(text, trim) == text
