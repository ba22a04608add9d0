"""What rules skip: what they are about, where it does not hold, and all else holds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.architecture.source_tree import ROOT
from tests.vectors.cases import FIRST_TRY, FITS, V1, result_of, short, started, wanting
from tests.vectors.runner import Verdict, run
from tests.vectors.skips import RULES

SHORTER = {**FIRST_TRY, "max_model_len": 5000}
HALF = {**FIRST_TRY, "gpu_memory_utilization": 0.5}
GONE = {**FIRST_TRY, "device": "cuda", "tokenizer_pool_size": 4}


async def test_a_rule_skips_what_does_not_hold_and_nothing_else(tmp_path: Path) -> None:
    eager = started(env={"VLLM_ENFORCE_EAGER": "1"})
    result = await result_of(tmp_path, eager)
    assert result.verdict is Verdict.SKIPPED
    assert result.why in {rule.reason for rule in RULES}
    holds = {**eager, "output": {"attempts": [{**FIRST_TRY, "enforce_eager": True}]}}
    assert (await result_of(tmp_path, holds)).verdict is Verdict.PASSED
    elsewhere = {**eager, "env": {}, "output": {"attempts": []}}
    assert (await result_of(tmp_path, elsewhere)).verdict is Verdict.FAILED


def after_v1(*errors: str | None, attempts: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    """A start that fell back from v1 to v0, as the seed's did."""
    given = {"constructor_errors": ["boom", *errors], "metax_device": False}
    output = {"started": True, "engine_kind": "async_v0", "attempts": attempts, **more}
    return started(env=V1, input=given, output=output)


@pytest.mark.parametrize(
    ("skipped", "failing"),
    [
        (
            after_v1(None, attempts=[FIRST_TRY, FIRST_TRY]),
            [
                after_v1(None, attempts=[HALF, HALF]),
                after_v1(None, attempts=[FIRST_TRY]),
                after_v1(None, attempts=[FIRST_TRY, FIRST_TRY], started=False),
                after_v1(None, attempts=[FIRST_TRY, FIRST_TRY], offline=True),
                after_v1(None, attempts=[FIRST_TRY, FIRST_TRY], engine_kind="llm"),
                after_v1(None, attempts=[FIRST_TRY, FIRST_TRY], colour="red"),
            ],
        ),
        (
            after_v1(FITS, None, attempts=[FIRST_TRY, FIRST_TRY, SHORTER]),
            [after_v1(FITS, None, attempts=[FIRST_TRY, FIRST_TRY, {**SHORTER, "dtype": "auto"}])],
        ),
        (wanting(GONE), [wanting({**HALF, "device": "cuda"}), wanting({**GONE, "colour": 1})]),
        (
            wanting(FIRST_TRY, VLLM_ENFORCE_EAGER="1"),
            [wanting(HALF, VLLM_ENFORCE_EAGER="1"), wanting(GONE | HALF, VLLM_ENFORCE_EAGER="1")],
        ),
        (wanting(GONE, VLLM_ENFORCE_EAGER="1"), []),
    ],
)
async def test_a_rule_covers_what_it_is_about_and_the_rest_must_hold(
    skipped: dict[str, Any], failing: list[dict[str, Any]], tmp_path: Path
) -> None:
    assert (await result_of(tmp_path, skipped)).verdict is Verdict.SKIPPED
    for vector in failing:
        assert (await result_of(tmp_path, vector)).verdict is Verdict.FAILED


async def test_a_prompt_that_is_no_text_is_skipped_where_it_is_refused(broker_url: str) -> None:
    number = {
        **short(group="system_prompt", function="set_system_prompt"),
        "input": {"new_prompt": 5},
        "output": {"stored": "5", "system_prompt_len": 1},
    }
    result = await run(number, "", lambda: broker_url)
    assert result.verdict is Verdict.SKIPPED
    taken = {**number, "input": {"new_prompt": None}, "env": {"WORKERS": 1}}
    assert (await run(taken, "", lambda: broker_url)).verdict is Verdict.FAILED


def test_every_rule_stands_in_the_docs() -> None:
    page = (ROOT / "docs" / "conformance.md").read_text("utf-8")
    assert [rule.reason for rule in RULES if rule.reason not in page] == []
