"""Questions of a file of the operator's that is wrong in some way; the recorded cases are among the vectors."""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker import warmup_data
from worker.warmup_data import load_user_prompts


def row(text: str) -> bytes:
    return json.dumps({"prompt": text}).encode() + b"\n"


@pytest.fixture
def lines(tmp_path: Path) -> Path:
    return tmp_path / "data.jsonl"


def only_line_of(caplog: pytest.LogCaptureFixture) -> str:
    (record,) = caplog.records
    return record.getMessage()


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        (b'{"prompt": "caf\xe9"}\n', "not UTF-8"),
        (b"{broken\n", "not JSON"),
        (b"[" * 200_000 + b"\n", "nested too deeply"),
        (b'{"a": ' * 100_000 + b"\n", "nested too deeply"),
        (b'{"prompt": "x", "n": ' + b"9" * 5_000 + b"}\n", "holds a number of thousands of digits"),
        (b'{"prompt": "' + b"x" * 3_000_000 + b'"}\n', "longer than 1 MiB"),
        (b'{"prompt": "half \\ud83d"}\n', "no question in it"),
        (b'{"prompt": {}, "messages": 7}\n', "no question in it"),
        (b'"text"\n', "no object"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_bad_line_costs_itself_alone(
    bad: bytes, why: str, lines: Path, caplog: pytest.LogCaptureFixture
) -> None:
    lines.write_bytes(row("one") + bad + row("two") + bad)
    assert load_user_prompts(str(lines), 9) == ["one", "two"]
    told = only_line_of(caplog)
    assert f"2 records skipped, the first of them line 2: {why}; 2 questions taken" in told


def test_a_line_of_exactly_the_most_is_read_and_so_is_the_next(
    lines: Path, caplog: pytest.LogCaptureFixture
) -> None:
    full = row("x" * (warmup_data.LINE_BYTES - len(row(""))))
    assert len(full) == warmup_data.LINE_BYTES
    lines.write_bytes(full + b" " + full + row("next"))
    assert [len(text) for text in load_user_prompts(str(lines), 9)] == [len(full) - len(row("")), 4]
    assert "line 2: longer than 1 MiB" in only_line_of(caplog)


@pytest.mark.parametrize("name", ["a.json", "b.jsonl"])
def test_a_byte_order_mark_and_numbers_that_are_none_are_let_pass(
    name: str, tmp_path: Path
) -> None:
    path = tmp_path / name
    record = b'{"score": NaN, "cost": -Infinity, "query": " first "}'
    path.write_bytes(b"\xef\xbb\xbf" + (b"[%s]" % record if name == "a.json" else record))
    assert load_user_prompts(str(path), 9) == ["first"]


def test_a_document_is_a_list_or_an_object_with_one_under_data(tmp_path: Path) -> None:
    path = tmp_path / "d.json"
    rows = [{"input": "a"}, 7, {"instruction": "b", "input": "c"}, {"input": "d"}]
    for document in (rows, {"data": rows}):
        path.write_text(json.dumps(document))
        assert load_user_prompts(str(path), 2) == ["a", "b"]


@pytest.mark.parametrize(
    ("document", "why"),
    [
        (b"{}", 'neither a list nor {"data": a list}'),
        (b'{"data": {"prompt": "x"}}', 'neither a list nor {"data": a list}'),
        (b"42", 'neither a list nor {"data": a list}'),
        (b"", "not JSON"),
        (b'[{"prompt": "x"}', "not JSON"),
        (b'[{"prompt": "\xff"}]', "not UTF-8"),
        (b"[" * 200_000, "nested too deeply"),
        (b"[" + b"9" * 5_000 + b"]", "holds a number of thousands of digits"),
    ],
)
def test_a_document_of_another_shape_is_told_in_one_line(
    document: bytes, why: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "d.json"
    path.write_bytes(document)
    assert load_user_prompts(str(path), 9) == []
    assert only_line_of(caplog) == f"warm-up file {path}: {why}; 0 questions taken"


def test_what_is_no_file_is_told_and_not_waited_for(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pipe = tmp_path / "pipe.jsonl"
    os.mkfifo(pipe)
    wrong = {str(tmp_path): "is a folder", str(pipe): "is no file", "\0": "cannot be read"}
    for path, why in wrong.items():
        caplog.clear()
        assert load_user_prompts(path, 9) == []
        assert why in only_line_of(caplog)


def test_a_file_that_is_not_there_is_no_fault(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It is the usual case: the default names one."""
    with caplog.at_level(logging.INFO):
        assert load_user_prompts(str(tmp_path / "data.jsonl"), 64) == []
    assert "is not there" in only_line_of(caplog)
    assert caplog.records[0].levelno == logging.INFO


def test_no_more_is_read_than_is_needed_and_of_a_huge_file_not_all(
    lines: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines.write_bytes(row("one") + b"\xff\n" * 3)
    assert load_user_prompts(str(lines), 1) == ["one"]
    assert not caplog.records, "what is behind the last question was not looked at"

    monkeypatch.setattr(warmup_data, "MOST_RECORDS", 2)
    lines.write_bytes(b"\n\n" + row("three"))
    assert load_user_prompts(str(lines), 9) == []
    assert "only its first 2 lines are read" in only_line_of(caplog)

    caplog.clear()
    monkeypatch.setattr(warmup_data, "FILE_BYTES", 40)
    lines.write_bytes(row("one") + row("x" * 40))
    assert load_user_prompts(str(lines), 9) == ["one"]
    assert "are read; 1 questions taken" in only_line_of(caplog)

    caplog.clear()
    monkeypatch.setattr(warmup_data, "DOCUMENT_BYTES", 40)
    document = lines.with_suffix(".json")
    document.write_bytes(b"[%s]" % row("x" * 40).strip())
    assert load_user_prompts(str(document), 9) == []
    assert "longer than" in only_line_of(caplog)


def test_a_document_which_is_read_whole_may_be_smaller_than_lines(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As objects it takes thirty times as much memory: 32 MiB would be most of a gigabyte."""
    rows = [{"prompt": "x" * 1000}] * 5 * 2**10
    document, lines = tmp_path / "d.json", tmp_path / "d.jsonl"
    document.write_text(json.dumps(rows))
    lines.write_text("\n".join(map(json.dumps, rows)))
    assert load_user_prompts(str(document), 1) == []
    assert "longer than 4 MiB, which only .jsonl may be" in only_line_of(caplog)
    assert len(load_user_prompts(str(lines), len(rows))) == len(rows)


def test_questions_are_never_logged(lines: Path, caplog: pytest.LogCaptureFixture) -> None:
    lines.write_bytes(b'{"pelican\n{"x": "pelican"}\n' + row("pelican") + b'["pelican"]\n')
    with caplog.at_level(logging.DEBUG):
        assert load_user_prompts(str(lines), 9) == ["pelican"]
    assert "pelican" not in caplog.text


anything = st.recursive(
    st.none() | st.booleans() | st.floats() | st.text(),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(["messages", "role", "content", "prompt", "data", "other"]), inner
        )
    ),
    max_leaves=8,
)


@given(st.lists(anything.map(lambda v: json.dumps(v).encode()) | st.binary(), max_size=5))
def test_whatever_lies_there_nothing_is_raised_and_only_texts_come_out(
    tmp_path_factory: pytest.TempPathFactory, records: list[bytes]
) -> None:
    folder = tmp_path_factory.getbasetemp()
    for name in ("any.jsonl", "any.json"):
        (folder / name).write_bytes(b"\n".join(records))
        found = load_user_prompts(str(folder / name), 3)
        assert len(found) <= 3
        assert all(text and text == text.strip() for text in found)
