"""The benchmark of the first seed's evaluation: its questions, what it finds wrong in a reply, and the command."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.routing import Router
from api.settings import ApiSettings
from bench import exam, seed
from bench.exam import Question
from bench.seed import OFFLINE, Reply, faults, in_place, mode_faults
from bench.stack import service
from tests.bench.test_figures import KEYS
from tests.e2e.places import ROOT, environment

PAPER = next(exam.papers(seed.QUICK_SIZES))
ECHOES = [place for place, question in enumerate(PAPER) if question.echo]
FIGURES = ("seconds", "answered", "faults", "in_place", "output_tokens_per_s", "characters_per_s")


def reply(response: list[str], named: frozenset[int] = frozenset()) -> Reply:
    items = [
        {"index": place, "text": text or None, "usage": {"completion_tokens": 3}}
        for place, text in enumerate(response)
    ]
    return Reply(2.0, response, named, items)


def right(paper: list[Question]) -> list[str]:
    """What a model would say that knows nothing but what it was told."""
    return [f"It is {question.echo}." if question.echo else "Yes." for question in paper]


def names(count: str, *sizes: int) -> list[str]:
    return [
        f"seed.{count}.mode_faults",
        *(f"seed.{count}.{size}.{figure}" for size in sizes for figure in FIGURES),
    ]


def told(capsys: pytest.CaptureFixture[str]) -> dict[str, dict[str, Any]]:
    """The figures by their names."""
    lines = capsys.readouterr().out.splitlines()
    return {figure["name"]: figure for figure in map(json.loads, lines)}


def started_with(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> None:
    monkeypatch.setattr(sys, "argv", ["bench.seed", *arguments])


def test_questions_take_the_route_that_they_are_written_for() -> None:
    router = Router(ApiSettings())
    wrong = [q.text for q in exam.questions() if router.route(q.text).route != q.route]
    assert wrong == []


def test_each_list_has_its_size_every_route_both_languages_and_no_question_of_another() -> None:
    papers = list(exam.papers(seed.SIZES))
    assert [len(paper) for paper in papers] == [92, 358]
    texts = [question.text for paper in papers for question in paper]
    assert len(set(texts)) == len(texts) == len(exam.questions())
    for paper in papers:
        routes = Counter(question.route for question in paper)
        assert set(routes) == {"short", "soft", "long", "hard"}
        assert min(routes.values()) >= len(paper) / 12
        assert set(routes) == {question.route for question in paper if question.echo}
        assert 0.2 < sum("\u4e00" <= q.text[-2] <= "\u9fff" for q in paper) / len(paper) < 0.4
    assert exam.questions() == exam.questions()
    with pytest.raises(ValueError, match="only 358 questions left for a list of 359"):
        list(exam.papers([92, 359]))


def test_what_an_answer_is_known_by_stands_in_its_own_question_alone() -> None:
    questions = exam.questions()
    for asked in questions:
        if asked.echo:
            assert [q.text for q in questions if asked.echo in q.text] == [asked.text]


def test_a_right_reply_has_no_fault() -> None:
    found = reply(right(PAPER))
    assert list(faults(PAPER, found)) == []
    assert in_place(PAPER, found.response) == len(ECHOES)
    assert (found.answered, found.output_tokens) == (92, 276)


@given(st.permutations(ECHOES).filter(lambda places: places != ECHOES))
def test_answers_at_each_others_places_are_found(places: list[int]) -> None:
    answers = right(PAPER)
    moved = answers.copy()
    for place, source in zip(ECHOES, places, strict=True):
        moved[place] = answers[source]
    n_moved = sum(place != source for place, source in zip(ECHOES, places, strict=True))
    assert len(list(faults(PAPER, reply(moved)))) == n_moved
    assert in_place(PAPER, moved) == len(ECHOES) - n_moved


def test_a_blank_answer_is_a_fault_unless_an_error_names_it() -> None:
    answers = right(PAPER)
    answers[5] = " "
    [fault] = faults(PAPER, reply(answers))
    assert "answer 5 is blank" in fault
    answers[5] = ""
    found = reply(answers, frozenset({5}))
    assert list(faults(PAPER, found)) == []
    assert found.answered == 91
    [fault] = faults(PAPER, reply(right(PAPER), frozenset({5})))
    assert "answer 5 is there" in fault


def test_missing_answers_and_other_ones_under_the_lists_id_are_faults() -> None:
    short = list(faults(PAPER, reply(right(PAPER)[:-1])))
    assert any("91 answers to 92 questions" in fault for fault in short)
    found = reply(right(PAPER))
    other = {**found.items[7], "text": "another"}
    [fault] = faults(PAPER, replace(found, items=[*found.items[:7], other, *found.items[8:]]))
    assert "answer 7 differs" in fault


def test_it_starts_as_many_workers_as_it_is_told_and_leaves_nothing(tmp_path: Path) -> None:
    done = subprocess.run(
        (sys.executable, "-m", "bench.seed", "--engine", "simulated", "--workers", "2"),
        cwd=ROOT,
        env=environment(TMPDIR=str(tmp_path)),
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    shown = [json.loads(line) for line in done.stdout.splitlines()]
    assert [list(figure) for figure in shown] == [KEYS] * len(shown)
    assert [figure["name"] for figure in shown] == names("2_workers", *seed.SIZES)
    assert {figure["value"] for figure in shown if figure["name"].endswith("in_place")} == {1.0}
    assert all(figure["ok"] is not False for figure in shown)
    assert list(tmp_path.iterdir()) == []


def test_what_is_not_batch_mode_or_not_its_engine_is_a_fault() -> None:
    assert list(mode_faults("batch", [OFFLINE, OFFLINE], OFFLINE)) == []
    assert list(mode_faults("batch", [OFFLINE, "vllm_async"], OFFLINE)) == [
        "a worker runs vllm_async, not vllm_offline"
    ]
    assert list(mode_faults("ok", ["simulated"], "simulated")) == ["GET / says 'ok', not 'batch'"]


def test_it_asks_a_service_that_is_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    own = {"ENGINE": "simulated", "BATCH_MODE": "1", "API_KEYS": "a-key"}
    with service(tmp_path, own) as stack:
        there = ("--quick", "--url", f"{stack.url}/")
        started_with(monkeypatch, *there, "--engine", "simulated")
        assert seed.main() == 2
        assert "/predict answered 401" in capsys.readouterr().err
        monkeypatch.setenv("SLUICE_API_KEY", "a-key")
        assert seed.main() == 0
        assert list(told(capsys)) == names("1_worker", *seed.QUICK_SIZES)
        # Answers are not enough: they must be those of batch mode's engine.
        started_with(monkeypatch, *there)
        assert seed.main() == 1
        mode = told(capsys)["seed.1_worker.mode_faults"]
        assert (mode["value"], mode["ok"]) == (1, False)
    # Nobody answers there any more: that is no measurement.
    assert seed.main() == 2
    assert "no worker takes requests" in capsys.readouterr().err


def test_a_list_that_is_not_answered_in_time_misses_and_the_next_one_is_asked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    own = {"ENGINE": "simulated", "SIM_TOKEN_S": "0.03", "SYNC_WAIT_S": "0.2"}
    with service(tmp_path, own) as stack:
        started_with(monkeypatch, "--url", stack.url, "--engine", "simulated")
        assert seed.main() == 1
    shown = told(capsys)
    assert list(shown) == names("1_worker", *seed.SIZES)
    assert shown["seed.1_worker.mode_faults"]["ok"] is False
    for size in seed.SIZES:
        figures = {name: shown[f"seed.1_worker.{size}.{name}"] for name in FIGURES}
        assert 0.2 <= figures["seconds"]["value"] < seed.LIMIT_S
        assert (figures["answered"]["value"], figures["faults"]["value"]) == (0, 1)
        assert {figures[name]["ok"] for name in FIGURES[:4]} == {False}


def test_a_service_that_never_replies_misses_too() -> None:
    def hang(request: httpx.Request) -> httpx.Response:
        raise httpx.ReadTimeout("nothing came", request=request)

    with httpx.Client(transport=httpx.MockTransport(hang), base_url="http://there") as client:
        late = seed.ask(client, PAPER)
    assert (late.is_late, late.answered, len(list(faults(PAPER, late)))) == (True, 0, 1)


def test_a_service_that_is_there_has_its_own_workers(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    started_with(monkeypatch, "--url", "http://127.0.0.1:9", "--workers", "2")
    with pytest.raises(SystemExit, match="2"):
        seed.main()
    assert "has its workers" in capsys.readouterr().err
