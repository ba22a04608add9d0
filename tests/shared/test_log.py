"""Log lines carry the request id and what was said, and nothing else."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Literal

import pytest

from shared.log import hold_lines, request_context, set_up_logging
from shared.settings import LogSettings

ROOT = Path(__file__).resolve().parents[2]
RID = "default.0-abc"
SECRET = "a prompt that nobody may read"
log = logging.getLogger("tests.shared.log")
Format = Literal["text", "json"]
Level = Literal["debug", "info", "warning", "error"]


@pytest.fixture(autouse=True)
def _root_as_before() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    quiet = {name: logging.getLogger(name).level for name in ("httpx", "httpcore", "asyncio")}
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    for name, before in quiet.items():
        logging.getLogger(name).setLevel(before)


def start(form: Format, level: Level = "info") -> None:
    set_up_logging(LogSettings(_env_file=None, log_format=form, log_level=level))


def json_lines(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in capsys.readouterr().err.splitlines()]


def test_a_json_line_has_these_fields_and_no_other(capsys: pytest.CaptureFixture[str]) -> None:
    start("json")
    with request_context(RID):
        log.info("claimed %d", 3, extra={"prompt": SECRET, "tenant": SECRET})
    (line,) = json_lines(capsys)
    when = datetime.fromisoformat(line.pop("time"))
    assert when.utcoffset() == timedelta(0), "the zone is told"
    assert abs((datetime.now(UTC) - when).total_seconds()) < 60
    assert line == {
        "level": "info",
        "logger": "tests.shared.log",
        "thread": threading.current_thread().name,
        "request_id": RID,
        "message": "claimed 3",
    }


def test_a_text_line_has_these_parts_and_no_other(capsys: pytest.CaptureFixture[str]) -> None:
    start("text")
    with request_context(RID):
        log.warning("claimed %d", 3, extra={"prompt": SECRET})
    out = capsys.readouterr()
    pattern = rf"[\d-]+ [\d:,]+ WARNING tests\.shared\.log \[{re.escape(RID)}\] claimed 3\n"
    assert re.fullmatch(pattern, out.err)
    assert out.out == ""


@pytest.mark.parametrize("form", ["text", "json"])
def test_a_traceback_shows_no_local_variable(
    form: Format, capsys: pytest.CaptureFixture[str]
) -> None:
    start(form)

    def fail(prompt: str) -> None:
        raise ValueError(f"failed on {len(prompt)} characters")

    try:
        fail(SECRET)
    except ValueError:
        log.exception("it failed")
    err = capsys.readouterr().err
    assert "failed on 29 characters" in err
    assert "Traceback" in err
    assert SECRET not in err


def test_a_json_line_stays_one_line_whatever_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    start("json")
    said = 'two\nlines "quoted" 你好 🦊 \u2028 \x00'
    with request_context(RID):
        log.info("%s", said)
    raw = capsys.readouterr().err
    assert raw.count("\n") == 1
    assert json.loads(raw)["message"] == said


@pytest.mark.parametrize("form", ["text", "json"])
def test_a_lone_surrogate_does_not_break_the_line(form: Format) -> None:
    program = (
        "import logging\n"
        "from shared.log import set_up_logging\n"
        "from shared.settings import LogSettings\n"
        f"set_up_logging(LogSettings(_env_file=None, log_format={form!r}))\n"
        "logging.info('odd: %s.', '\\ud800')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, timeout=60, check=True
    )
    assert done.stderr.count(b"\n") == 1
    assert rb"odd: \ud800." in done.stderr


def test_what_is_said_before_logging_is_set_up_is_said_then_and_once(
    capsys: pytest.CaptureFixture[str],
) -> None:
    hold_lines()
    log.warning("early")
    assert capsys.readouterr().err == ""
    start("json", "warning")
    log.warning("late")
    start("json", "warning")
    said = [json.loads(line)["message"] for line in capsys.readouterr().err.splitlines()]
    assert said == ["early", "late"]


def test_a_held_line_is_bound_by_the_level_like_any_other(
    capsys: pytest.CaptureFixture[str],
) -> None:
    hold_lines()
    log.warning("early")
    start("text", "error")
    assert capsys.readouterr().err == ""


def fail_after_logging(text: str) -> None:
    log.info("%s", text)
    raise RuntimeError


def test_the_id_ends_with_its_context(capsys: pytest.CaptureFixture[str]) -> None:
    start("json")
    log.info("before")
    with request_context("outer"):
        with pytest.raises(RuntimeError), request_context("inner"):
            fail_after_logging("inner")
        log.info("outer")
    log.info("after")
    assert [line["request_id"] for line in json_lines(capsys)] == ["-", "inner", "outer", "-"]


async def test_tasks_do_not_see_each_others_id(capsys: pytest.CaptureFixture[str]) -> None:
    start("json")
    both_inside = asyncio.Barrier(2)

    async def run(rid: str) -> None:
        with request_context(rid):
            await both_inside.wait()
            log.info("%s", rid)

    await asyncio.gather(run("one"), run("two"))
    lines = json_lines(capsys)
    assert sorted(line["message"] for line in lines) == ["one", "two"]
    assert all(line["message"] == line["request_id"] for line in lines)


def test_another_thread_has_no_id(capsys: pytest.CaptureFixture[str]) -> None:
    start("json")
    with request_context(RID):
        thread = threading.Thread(target=log.info, args=("beat",))
        thread.start()
        thread.join()
    assert json_lines(capsys)[0]["request_id"] == "-"


def test_the_level_holds_and_libraries_are_quiet(capsys: pytest.CaptureFixture[str]) -> None:
    start("json", "debug")
    log.debug("shown")
    logging.getLogger("httpx").info("hidden: it tells addresses")
    logging.getLogger("httpcore.http11").debug("hidden")
    start("json", "warning")
    log.info("hidden")
    log.warning("shown too")
    assert [line["message"] for line in json_lines(capsys)] == ["shown", "shown too"]


def test_set_up_twice_says_it_once(capsys: pytest.CaptureFixture[str]) -> None:
    start("json")
    start("json")
    log.info("once")
    assert len(json_lines(capsys)) == 1
