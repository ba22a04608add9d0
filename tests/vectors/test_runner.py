"""The runner itself: what it fails, what it skips, what it says, and what it lets a vector see."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.architecture.source_tree import ROOT
from tests.vectors.__main__ import main
from tests.vectors.comparison import exact, partial, spelled_out, with_types
from tests.vectors.runner import Result, Verdict, run, told
from tests.vectors.skips import RULES
from tests.vectors.vector import BadFile, Vector, read_vectors

SHORT = {
    "name": "short",
    "group": "cn_short",
    "function": "routing",
    "input": {"prompt": "什么是尾延迟"},
    "env": {},
    "output": {"pick_max_new_tokens": 32, "route": "short"},
    "verdict": "ok",
}
FIRST_TRY = {"enable_prefix_caching": True, "gpu_memory_utilization": 0.85, "dtype": "float16"}
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=8,
)


def short(**changed: Any) -> dict[str, Any]:
    return {**SHORT, **changed}


def started(**changed: Any) -> dict[str, Any]:
    """A start without failures, whose one try has what `output` of it says."""
    return {
        "name": "start",
        "group": "boot",
        "function": "engine_start",
        "input": {"constructor_errors": [], "metax_device": False},
        "env": {},
        "output": {"started": True, "attempts": [FIRST_TRY]},
        "verdict": "ok",
        **changed,
    }


def written(folder: Path, *vectors: dict[str, Any]) -> Path:
    path = folder / "some.json"
    path.write_text(json.dumps({"meta": {}, "vectors": list(vectors)}), "utf-8")
    return path


def no_broker() -> str:
    raise AssertionError("no broker is needed")


async def result_of(folder: Path, vector: dict[str, Any]) -> Result:
    (read,) = read_vectors(written(folder, vector))
    return await run(read, no_broker)


async def test_a_wrong_output_fails_and_says_what_was_wanted_and_what_came(tmp_path: Path) -> None:
    wrong = short(output={"pick_max_new_tokens": 33, "route": "short"})
    result = await result_of(tmp_path, wrong)
    assert (result.name, result.verdict) == ("short", Verdict.FAILED)
    assert result.why == "pick_max_new_tokens: wanted 33, got 32"


@pytest.mark.parametrize(
    ("vector", "said"),
    [
        (short(function="no_such"), "no_such"),
        (short(input={}), "KeyError"),
        (short(output={"colour": "red"}), "colour"),
        (started(verdict="bug", right_output="it does well"), "it does well"),
        (started(output={"started": True, "mood": "good"}), "mood"),
    ],
)
async def test_what_is_not_understood_fails_in_one_line(
    vector: dict[str, Any], said: str, tmp_path: Path
) -> None:
    result = await result_of(tmp_path, vector)
    assert result.verdict is Verdict.FAILED
    line, _ = told([result])
    assert said in line
    assert "\n" not in line


@pytest.mark.parametrize("verdict", ["bug", "spec"])
async def test_a_fault_of_the_seed_is_held_against_what_is_right(
    verdict: str, tmp_path: Path
) -> None:
    faulty = short(output={"route": "soft"}, verdict=verdict, right_output={"route": "short"})
    assert (await result_of(tmp_path, faulty)).verdict is Verdict.PASSED
    assert (await result_of(tmp_path, {**faulty, "verdict": "quirk"})).verdict is Verdict.FAILED


async def test_words_are_checked_clause_by_clause(tmp_path: Path) -> None:
    words = "speculation keeps chunked prefill on; no disable_logprobs key"
    env = {"ENABLE_SPECULATIVE_DECODING": "1", "SPEC_METHOD": "ngram"}
    right = started(env=env, verdict="bug", right_output=words)
    assert (await result_of(tmp_path, right)).verdict is Verdict.PASSED
    for wrong in (
        {**right, "right_output": "no prompt_lookup_max key"},
        {**right, "right_output": f"{words}; and more"},
        {**right, "env": {}},
    ):
        assert (await result_of(tmp_path, wrong)).verdict is Verdict.FAILED


async def test_a_rule_skips_what_does_not_hold_and_nothing_else(tmp_path: Path) -> None:
    eager = started(env={"VLLM_ENFORCE_EAGER": "1"})
    result = await result_of(tmp_path, eager)
    assert result.verdict is Verdict.SKIPPED
    assert result.why in {rule.reason for rule in RULES}
    holds = {**eager, "output": {"attempts": [{**FIRST_TRY, "enforce_eager": True}]}}
    assert (await result_of(tmp_path, holds)).verdict is Verdict.PASSED
    elsewhere = {**eager, "env": {}, "output": {"attempts": []}}
    assert (await result_of(tmp_path, elsewhere)).verdict is Verdict.FAILED


def test_every_rule_stands_in_the_docs() -> None:
    page = (ROOT / "docs" / "conformance.md").read_text("utf-8")
    assert [rule.reason for rule in RULES if rule.reason not in page] == []


async def test_a_vector_sees_its_own_variables_and_no_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".env").write_text("MAX_NEW_TOKENS=7\n")
    monkeypatch.setenv("MAX_NEW_TOKENS", "8")
    assert (await result_of(tmp_path, short())).verdict is Verdict.PASSED
    own = short(env={"MAX_NEW_TOKENS": "9"}, output={"pick_max_new_tokens": 9})
    assert (await result_of(tmp_path, own)).verdict is Verdict.PASSED
    assert os.environ["MAX_NEW_TOKENS"] == "8"
    assert Path.cwd() == tmp_path


@pytest.mark.parametrize(
    ("vectors", "code", "totals"),
    [
        ([short()], 0, "1 passed, 0 failed, 0 skipped"),
        ([short(), short(output={"route": "hard"})], 1, "1 passed, 1 failed, 0 skipped"),
        ([started(env={"VLLM_ENFORCE_EAGER": "1"})], 0, "0 passed, 0 failed, 1 skipped"),
        ([], 0, "0 passed, 0 failed, 0 skipped"),
    ],
)
def test_the_last_line_has_the_totals_and_the_exit_code_says_the_same(
    vectors: list[dict[str, Any]],
    code: int,
    totals: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main([str(written(tmp_path, *vectors))]) == code
    assert capsys.readouterr().out.splitlines()[-1] == totals


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{broken", "cannot be read"),
        ("[]", 'a list "vectors"'),
        ('{"vectors": [{"name": "x"}]}', "vectors[0]: has no 'group'"),
        (json.dumps({"vectors": [short(verdict="odd")]}), "verdict 'odd' is unknown"),
        (json.dumps({"vectors": [short(verdict="bug")]}), "needs a right_output"),
    ],
)
def test_a_file_that_is_none_of_vectors_is_a_failure(
    text: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "bad.json"
    path.write_text(text, "utf-8")
    with pytest.raises(BadFile):
        read_vectors(path)
    assert main([str(path), str(tmp_path / "absent.json")]) == 1
    first, second, totals = capsys.readouterr().out.splitlines()
    assert said in first
    assert "absent.json: cannot be read" in second
    assert totals == "0 passed, 2 failed, 0 skipped"


# --- comparing


@given(JSON, JSON)
def test_equal_values_differ_nowhere_and_others_somewhere(one: Any, other: Any) -> None:
    assert exact(one, one) == []
    assert partial(one, one) == []
    if json.dumps(one, sort_keys=True) != json.dumps(other, sort_keys=True):
        assert exact(one, other)


def test_a_partial_output_leaves_other_keys_free_and_lists_whole() -> None:
    assert partial({"a": [{"b": 1}]}, {"a": [{"b": 1, "c": 2}], "d": 3}) == []
    assert partial({"a": [1]}, {"a": [1, 2]})
    assert partial({"a": None}, {})
    assert exact({"a": 1}, {"a": 1, "d": 3})
    assert exact(1, True)


def test_what_stands_for_a_value_matches_values_of_its_kind() -> None:
    assert with_types({"n": "int", "t": "str"}, {"n": 3, "t": "x"}) == {"n": 3, "t": "x"}
    assert with_types({"n": "int"}, {"n": "x"}) == {"n": "int"}
    digest = {"len": 12, "first": "abbbb", "last": "bbbbc"}
    text = spelled_out(digest)
    assert text == "abbbbbbbbbbc"
    assert with_types(digest, text) == text
    assert with_types(digest, text + "c") == digest


def test_a_vector_without_its_own_right_output_wants_the_recorded_one() -> None:
    vector = Vector("n", "g", "f", {}, {}, "out", "quirk", right="better")
    assert vector.wanted == "out"
