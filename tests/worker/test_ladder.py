"""Engines in order, and what is tried again with other arguments."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import pytest

from shared.worker_info import StartStep
from worker.ladder import SetupFailed, climb
from worker.repairs import Arguments, Machine

ESTIMATE = "KV cache: the estimated maximum model length is 5000."
AWQ = "Load format `awq` is not supported"


class Scripted:
    """Constructs by script: a text is a failure, None a success."""

    def __init__(self, script: Sequence[str | None]) -> None:
        self._script = list(script)
        self.tries: list[tuple[str, dict[str, Any]]] = []

    async def construct(self, kind: str, arguments: Arguments) -> str:
        self.tries.append((kind, dict(arguments)))
        said = self._script.pop(0)
        if said is not None:
            raise RuntimeError(said)
        return f"a running {kind}"


async def climbed(
    script: Sequence[str | None], kinds: Sequence[str], arguments: Arguments
) -> tuple[Scripted, Any, list[StartStep], list[str]]:
    scripted, report, repairs = Scripted(script), list[StartStep](), list[str]()
    brought = await climb(
        kinds, arguments, scripted.construct, Machine(), report, on_repair=repairs.append
    )
    return scripted, brought, report, repairs


async def test_what_starts_at_once_is_told_with_its_seconds() -> None:
    scripted, brought, report, _ = await climbed([None], ["vllm_async"], {"dtype": "auto"})
    assert (brought.engine, brought.kind) == ("a running vllm_async", "vllm_async")
    assert scripted.tries == [("vllm_async", {"dtype": "auto"})]
    assert [(step.name, step.error) for step in report] == [("vllm_async", None)]


async def test_repairs_add_up_and_are_counted_and_reported() -> None:
    scripted, brought, report, repairs = await climbed(
        [AWQ, ESTIMATE, None], ["vllm_async"], {"load_format": "awq"}
    )
    assert [arguments for _, arguments in scripted.tries] == [
        {"load_format": "awq"},
        {},
        {"max_model_len": 5000},
    ]
    assert brought.arguments == {"max_model_len": 5000}
    assert repairs == ["load_format", "max_model_len"]
    assert [step.name for step in report] == [
        "vllm_async",
        "repair load_format: load_format left out, was 'awq'",
        "vllm_async",
        "repair max_model_len: max_model_len now 5000",
        "vllm_async",
    ]


async def test_the_ladder_is_the_same_for_every_engine_and_what_one_taught_helps_the_next() -> None:
    scripted, brought, _, _ = await climbed(
        [ESTIMATE, "boom", None], ["vllm_offline", "vllm_async"], {}
    )
    assert scripted.tries == [
        ("vllm_offline", {}),
        ("vllm_offline", {"max_model_len": 5000}),
        ("vllm_async", {"max_model_len": 5000}),
    ]
    assert brought.kind == "vllm_async"


async def test_a_failure_that_no_step_mends_goes_on_to_the_next_engine() -> None:
    scripted, brought, _, repairs = await climbed(
        ["CUDA out of memory", None], ["vllm_async", "transformers"], {}
    )
    assert [kind for kind, _ in scripted.tries] == ["vllm_async", "transformers"]
    assert (brought.kind, repairs) == ("transformers", [])


async def test_where_all_fail_one_line_says_why_each_did() -> None:
    with pytest.raises(SetupFailed, match=r"vllm_async: one.*transformers: two") as caught:
        await climbed(["one\nmore", "two"], ["vllm_async", "transformers"], {})
    assert "\n" not in str(caught.value)
    assert [step.error for step in caught.value.report] == ["one more", "two"]


async def test_arguments_that_a_step_chokes_on_end_no_ladder() -> None:
    class Odd:
        def __eq__(self, other: object) -> bool:
            raise TypeError("cannot be compared")

    arguments = {"load_format": Odd()}
    scripted, brought, _, _ = await climbed(
        ["LoadConfig: load_format", None], ["vllm_async", "transformers"], arguments
    )
    assert brought.kind == "transformers"
    assert len(scripted.tries) == 2


async def test_each_step_is_logged_by_name(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        await climbed([ESTIMATE, None], ["vllm_async"], {"max_model_len": 9000})
    assert "repair max_model_len: max_model_len now 5000, was 9000" in caplog.text
