"""Question routing: the recorded vectors, and the cases that the rules mend."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from api.routing import Route, Router
from tests.api.conftest import Load
from tests.api.vectors import expected, vectors


@pytest.mark.parametrize("vector", vectors("routing", "routing"), ids=lambda v: v["name"])
def test_a_prompt_is_routed_as_recorded(vector: dict[str, Any], load_settings: Load) -> None:
    router = Router(load_settings(vector["env"]))
    prompt = vector["input"]["prompt"]
    decision = router.route(prompt)
    found = {
        "pick_max_new_tokens": decision.budget_tokens,
        "route": decision.route.value,
        "is_code_question": router.is_code(prompt),
        "is_hard_code_question": router.is_hard_code(prompt),
        "is_long_answer_question": router.is_long_answer(prompt),
    }
    wanted = expected(vector)
    assert wanted
    assert {name: found[name] for name in wanted} == wanted


OURS = [v for v in vectors("routing", "module_import") if "BATCH_CONCURRENCY" not in v["env"]]


@pytest.mark.parametrize("vector", OURS, ids=lambda v: v["name"])
def test_a_bad_number_warns_and_takes_the_default(
    vector: dict[str, Any], load_settings: Load, caplog: pytest.LogCaptureFixture
) -> None:
    (name,) = vector["env"]
    with caplog.at_level(logging.WARNING):
        settings = load_settings(vector["env"])
    assert getattr(settings, name.lower()) == type(settings).model_fields[name.lower()].default
    assert name in caplog.text


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
