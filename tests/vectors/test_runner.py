"""The runner itself: what it fails, what it says, and what it lets a vector see."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from tests.vectors.__main__ import main
from tests.vectors.cases import V1, result_of, short, started, written
from tests.vectors.runner import Verdict, told
from tests.vectors.vector import BadFile, read_entries


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
        ("[" * 100_000, "cannot be read"),
        ("[]", 'a list "vectors"'),
        ('{"meta": {}}', 'a list "vectors"'),
    ],
)
def test_a_file_that_is_none_of_vectors_is_a_failure(
    text: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "bad.json"
    path.write_text(text, "utf-8")
    with pytest.raises(BadFile):
        read_entries(path)
    assert main([str(path), str(tmp_path / "absent.json")]) == 1
    first, second, totals = capsys.readouterr().out.splitlines()
    assert said in first
    assert "absent.json: cannot be read" in second
    assert totals == "0 passed, 2 failed, 0 skipped"


SETTING = short(group="system_prompt", function="set_system_prompt")


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ({"name": "x"}, "has no 'group'"),
        ([], "vectors[0]: BadVector: must be an object"),
        (short(name=7), "name: must be a text"),
        (short(verdict="odd"), "verdict 'odd' is unknown"),
        (short(verdict="bug"), "needs a right_output"),
        (short(function=["routing"]), "function: must be a text"),
        (short(env=None), "env: must be an object"),
        (started(env=None, output={"attempts": []}), "env: must be an object"),
        (started(env={"SERVE_VLLM_ENGINE": 1}), "env: SERVE_VLLM_ENGINE must be a text"),
        (short(env={"SOME=NAME": "1"}), "Error"),
        (short(env={"MAX_NEW_TOKENS": "\0"}), "Error"),
        (short(env={"MAX_NEW_TOKENS": "\ud800"}), "Error"),
        (started(output={"attempts": None}), "TypeError"),
        (started(env=V1, output={"attempts": [1]}), "TypeError"),
        ({**SETTING, "input": ["new_prompt"]}, "input: must be an object"),
        (short(output={"route": "\ud800\n"}), r"\ud800"),
        (short(output={"pick_max_new_tokens": float("nan")}), "wanted NaN, got 32"),
        (short(name="two\nlines", output=None), "FAILED two lines: "),
    ],
)
def test_whatever_one_vector_is_it_is_one_line_and_the_others_are_run(
    entry: Any, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(written(tmp_path, entry, short()))]) == 1
    line, totals = capsys.readouterr().out.splitlines()
    assert line.startswith("FAILED ")
    assert said in line
    assert totals == "1 passed, 1 failed, 0 skipped"
