"""Following logs: the last lines, new ones, over rotation."""

from __future__ import annotations

from pathlib import Path

from cli.guard import RotatingLog
from cli.logs import Follower, follow


def test_the_last_lines_of_every_part_with_its_name(tmp_path: Path) -> None:
    (tmp_path / "api.log").write_text("one\ntwo\nthree\n")
    (tmp_path / "worker-1.log").write_text("four\nhalf a li")
    (tmp_path / "api.log.1").write_text("old\n")
    assert list(follow(tmp_path, (), last=2, forever=False)) == [
        "api       two",
        "api       three",
        "worker-1  four",
    ]
    assert list(follow(tmp_path, ("worker-1",), last=0, forever=False)) == []
    assert list(follow(tmp_path, ("api",), last=1, forever=False)) == ["api       three"]


def test_new_lines_come_whole_and_none_is_lost_when_the_file_is_turned_over(tmp_path: Path) -> None:
    log = RotatingLog(tmp_path / "x.log", limit_bytes=60)
    log.write(b"before\n")
    follower = Follower(tmp_path / "x.log", last=0)
    assert list(follower.lines()) == []
    log.write(b"first ha")
    assert list(follower.lines()) == []
    log.write(b"lf\nsecond\n")
    assert list(follower.lines()) == ["first half", "second"]
    log.write(b"third, before the turn\n")
    log.write(b"fourth, after the turn\n")
    assert list(follower.lines()) == ["third, before the turn", "fourth, after the turn"]
    follower.close()
    log.close()


def test_a_log_that_does_not_exist_yet_is_waited_for(tmp_path: Path) -> None:
    follower = Follower(tmp_path / "x.log", last=5)
    assert list(follower.lines()) == []
    (tmp_path / "x.log").write_text("born\n")
    assert list(follower.lines()) == ["born"]
    follower.close()
