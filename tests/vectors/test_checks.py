"""What checks fail: outputs that say too little or what nobody knows, and what was let through once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from shared.status import MOVES, ReqStatus
from tests.vectors.cases import FIRST_TRY, FITS, result_of, right, short, started, wanting
from tests.vectors.runner import Verdict, run


def sampled(**asked: Any) -> dict[str, Any]:
    return short(function="sampling_params.from_dict", input={"max_tokens": 16, **asked})


def configured(output: Any, **asked: Any) -> dict[str, Any]:
    function = "sampling_params.get_sampling_config"
    return right({**sampled(**asked), "function": function}, output)


IMPORTED = short(function="module_import", env={"TOP_K": "7"}, input={})
GROUPED = short(function="same_batch_group", input={"a": {"max_tokens": 1}, "b": {"max_tokens": 1}})
STREAMED = short(
    function="stream_with_stop",
    input={"pieces": ["ab"], "stop": ["c"], "min_tokens": 0, "include_stop_str_in_output": False},
)
DESCRIBED = short(
    function="build_speculative_config",
    env={"ENABLE_SPECULATIVE_DECODING": "1", "SPEC_METHOD": "ngram"},
)


@pytest.mark.parametrize(
    ("vector", "output"),
    [
        (sampled(), {"valid": True}),
        (sampled(top_k=0), {"valid": True, "normalised": {"top_k": -1}}),
        (sampled(top_p=7), {"valid": False, "field": "top_p"}),
        (sampled(max_tokens="16"), {"valid": True, "coerced": 16, "or": "422"}),
        (IMPORTED, {"import": "ok", "value": 7}),
        (GROUPED, {"same_group": True}),
        (STREAMED, {"text": "ab", "finish_reason": "length"}),
        (DESCRIBED, {"method": "ngram"}),
        (short(), {"route": "short"}),
        (started(), {"started": True}),
    ],
)
async def test_an_output_with_an_unknown_field_or_without_a_known_one_fails(
    vector: dict[str, Any], output: dict[str, Any], tmp_path: Path
) -> None:
    assert (await result_of(tmp_path, right(vector, output))).verdict is Verdict.PASSED
    for wrong in ({**output, "colour": "red"}, {"colour": "red"}, {}):
        result = await result_of(tmp_path, right(vector, wrong))
        assert result.verdict is Verdict.FAILED, wrong


async def test_ids_of_a_request_are_ends_to_transformers_and_no_list_is_an_empty_one(
    tmp_path: Path,
) -> None:
    ids = {"stop_token_ids": [5, 6]}
    told = {"transformers": {"eos_token_id": [5, 6]}, "vllm": ids}
    assert (await result_of(tmp_path, configured(told, **ids))).verdict is Verdict.PASSED
    assert (await result_of(tmp_path, configured({"vllm": {"stop": []}}))).verdict is Verdict.PASSED
    for wrong in (
        configured({"transformers": {"eos_token_id": [5]}}, **ids),
        configured({"transformers": {"eos_token_id": [5, 6]}}),
        configured({"transformers": {}}),
        configured({"transformers": {"colour": None}}),
        configured({"vllm": {"stop": []}}, stop=["END"]),
        configured({"vllm": {"stop_token_ids": []}}, **ids),
        configured({"slang": {"stop": []}}),
    ):
        assert (await result_of(tmp_path, wrong)).verdict is Verdict.FAILED, wrong


async def test_what_a_switch_that_is_left_out_means_is_told_apart(tmp_path: Path) -> None:
    on, off = FIRST_TRY, {**FIRST_TRY, "enable_prefix_caching": False}
    left_out = {name: value for name, value in on.items() if name != "enable_prefix_caching"}
    for wanted, env, verdict in (
        (on, "1", Verdict.PASSED),
        (off, "0", Verdict.PASSED),
        (left_out, "0", Verdict.PASSED),  # what was off by default then was not recorded
        (on, "0", Verdict.FAILED),
        (off, "1", Verdict.FAILED),
        (left_out, "1", Verdict.FAILED),
    ):
        vector = wanting(wanted, ENABLE_PREFIX_CACHING=env)
        assert (await result_of(tmp_path, vector)).verdict is verdict, (wanted, env)


async def test_a_ladder_is_one_where_the_kind_that_failed_was_mended(tmp_path: Path) -> None:
    words = "the same ladder applies to every engine kind"
    batch = right(started(env={"BATCH_MODE": "1"}), words)
    for errors, verdict in (
        ([FITS, FITS, None], Verdict.PASSED),
        ([FITS, None], Verdict.PASSED),
        ([FITS], Verdict.FAILED),  # whether the second try does well is not told
        (["boom", None], Verdict.FAILED),
        ([None], Verdict.FAILED),
        ([], Verdict.FAILED),
    ):
        given = {**batch["input"], "constructor_errors": errors}
        assert (await result_of(tmp_path, {**batch, "input": given})).verdict is verdict, errors


async def test_how_the_tokenizer_was_asked_is_compared(tmp_path: Path) -> None:
    turns = [{"role": "system", "content": "s"}, {"role": "user", "content": "q"}]
    call = {"messages": turns, "tokenize": False, "add_generation_prompt": True}
    chat = short(
        function="format_as_chat",
        input={"tokenizer": {"chat_template": "{{x}}"}, "system_prompt": "s", "user_prompt": "q"},
        output="[system]s[user]q[assistant]",
    )
    holds = {**chat, "template_calls": [call]}
    assert (await result_of(tmp_path, holds)).verdict is Verdict.PASSED
    for calls in ([], [call, call], [{**call, "tokenize": True}]):
        wrong = {**chat, "template_calls": calls}
        assert (await result_of(tmp_path, wrong)).verdict is Verdict.FAILED


ASKED = {"method": "GET", "path": "/", "json": None}
OK = {"status": 200, "response": {"status": "ok"}, "engine_calls": []}
ABSENT = {"method": "GET", "path": "/none", "json": None}
TWO = short(
    function="http",
    input={},
    output=[{"request": ASKED, **OK}, {"request": ABSENT, "status": 404}],
)


@pytest.mark.parametrize(
    ("output", "verdict"),
    [
        ({"status": 200}, Verdict.FAILED),  # of both, and one of them is 404
        ([OK, {"status": 404}], Verdict.PASSED),
        ([{"request": ASKED, **OK}], Verdict.PASSED),
        ([{"request": ABSENT, **OK}], Verdict.FAILED),
        ([{"request": ASKED, **OK}] * 3, Verdict.PASSED),
        ([OK], Verdict.FAILED),
        ([], Verdict.FAILED),
        ({}, Verdict.FAILED),
        ([{}, {}], Verdict.FAILED),
        ([{"request": ASKED}], Verdict.FAILED),
        ([{"request": ASKED, "colour": "red"}], Verdict.FAILED),
        ([{"request": ASKED, **OK}, {"status": 404}], Verdict.FAILED),
    ],
)
async def test_the_requests_of_a_right_output_are_sent_and_each_states_something(
    output: Any, verdict: Verdict, broker_url: str
) -> None:
    result = await run(right(TWO, output), "", lambda: broker_url)
    assert result.verdict is verdict, result


@pytest.mark.parametrize("start", ReqStatus)
@pytest.mark.parametrize("to", ReqStatus)
async def test_every_move_is_tried_with_the_scripts_of_the_broker(
    start: ReqStatus, to: ReqStatus, broker_url: str
) -> None:
    is_applied = to in MOVES[start]
    move = short(function="set_status", input={"from": start.value, "to": to.value})
    holds = {**move, "output": {"allowed": is_applied or start is to}}
    told = {**holds, "right_output": {"applied": is_applied}}
    assert (await run(told, "", lambda: broker_url)).verdict is Verdict.PASSED
    wrong = {**holds, "right_output": {"applied": not is_applied}}
    assert (await run(wrong, "", lambda: broker_url)).verdict is Verdict.FAILED


async def test_a_table_of_moves_that_the_scripts_do_not_follow_is_a_failure(
    broker_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(MOVES, ReqStatus.PENDING, frozenset({ReqStatus.RUNNING}))
    move = short(function="set_status", input={"from": "pending", "to": "cancelled"})
    result = await run({**move, "output": {"allowed": True}}, "", lambda: broker_url)
    assert result.verdict is Verdict.FAILED
    assert "the table of moves" in result.why
