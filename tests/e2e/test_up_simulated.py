"""`up` with the simulated engine, where a real one would only take longer: no end of any process loses a request."""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from cli.data_folder import DataFolder
from cli.records import Record
from tests.e2e.launcher import Launcher
from tests.e2e.places import wait_until
from tests.valkey_server import Server

START_LIMIT_S = 60.0
GONE_LIMIT_S = 5.0
# Ten tokens of a tenth of a second each, two at once.
SLOW = {"SIM_FIRST_TOKEN_S": "0.1", "SIM_TOKEN_S": "0.1", "SIM_SLOTS": "2"}


@pytest.fixture
def up(tmp_path: Path) -> Iterator[Launcher]:
    # A short lease, so that the work of the dead is soon taken over.
    launcher = Launcher(tmp_path, ENGINE="simulated", LEASE_S="2")
    yield launcher
    launcher.close()


def submit(up: Launcher, number: int) -> list[str]:
    return [
        up.door.submit(prompt=f"number {n}", max_tokens=10, ignore_eos=True) for n in range(number)
    ]


def states(up: Launcher, rids: list[str]) -> Counter[str]:
    return Counter(up.door.look(rid)["status"] for rid in rids)


def part_pid(up: Launcher, name: str) -> int | None:
    running = Record(DataFolder(up.data).record(name)).read()
    return running.part if running else None


def kill_part(up: Launcher, name: str) -> None:
    """Returns once the next life of the part has begun."""
    pid = part_pid(up, name)
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    wait_until(f"{name} is started again", lambda: part_pid(up, name) not in (None, pid), 20.0)


def test_it_answers_within_seconds_and_down_leaves_nothing(up: Launcher) -> None:
    up.start()
    up.wait_for("ok", START_LIMIT_S)
    assert up.door.predict("hello") == "A(hello)"
    assert up.door.predict(["one", "two"]) == ["A(one)", "A(two)"]
    family = up.family()
    code, said = up.down()
    assert code == 0, said
    assert up.process.wait(10) == 0
    assert family.is_gone()
    assert up.processes() == []


def test_what_was_queued_when_up_was_killed_is_answered_after_the_next_start(up: Launcher) -> None:
    up.start(**SLOW)
    up.wait_for("ok", START_LIMIT_S)
    rids = submit(up, 12)
    wait_until("some run", lambda: states(up, rids)["running"] > 0, 20.0)
    family = up.family()
    up.kill()
    wait_until("nothing of it is left", family.is_gone, GONE_LIMIT_S)
    assert up.processes() == []

    up.start()
    up.wait_for("ok", START_LIMIT_S)
    answers = up.door.finals(rids, 60.0)
    assert {answer["status"] for answer in answers} == {"finished"}
    assert all(answer["text"].startswith("A(number") for answer in answers)
    assert up.door.counters()["finished"] == len(rids)


def test_killed_while_it_starts_it_leaves_nothing(up: Launcher) -> None:
    up.start()
    wait_until("its first part runs", lambda: part_pid(up, "broker") is not None, 30.0)
    family = up.family()
    up.kill()
    wait_until("nothing of it is left", family.is_gone, GONE_LIMIT_S)
    wait_until("nor of what it was just starting", lambda: up.processes() == [], GONE_LIMIT_S)


def test_ctrl_c_finishes_what_runs_and_keeps_the_rest_for_the_next_start(up: Launcher) -> None:
    up.start(**SLOW)
    up.wait_for("ok", START_LIMIT_S)
    rids = submit(up, 12)
    wait_until("some run", lambda: states(up, rids)["running"] > 0, 20.0)
    up.interrupt()
    assert up.process.wait(30) == 0
    assert up.processes() == []

    up.start()
    up.wait_for("ok", START_LIMIT_S)
    answers = up.door.finals(rids, 60.0)
    assert {answer["status"] for answer in answers} == {"finished"}
    # A clean stop wastes nobody's work: no request was begun twice.
    assert {answer["attempts"] for answer in answers} == {1}
    assert up.door.counters()["finished"] == len(rids)


def test_two_workers_share_the_work_of_one_queue(up: Launcher) -> None:
    up.start(WORKERS="2", **SLOW)
    up.wait_for("ok", START_LIMIT_S)
    wait_until("both serve", lambda: len(up.door.workers()) == 2, START_LIMIT_S)
    answers = up.door.finals(submit(up, 16), 60.0)
    assert {answer["status"] for answer in answers} == {"finished"}
    by_worker = Counter(answer["worker"].split(".")[0] for answer in answers)
    assert set(by_worker) == {"worker-1", "worker-2"}
    assert min(by_worker.values()) >= 4, by_worker


@pytest.mark.parametrize("part", ["worker-1", "broker", "api"])
def test_a_part_killed_in_the_middle_of_work_costs_no_request(up: Launcher, part: str) -> None:
    up.start(**SLOW)
    up.wait_for("ok", START_LIMIT_S)
    rids = submit(up, 8)
    wait_until("some run", lambda: states(up, rids)["running"] > 0, 20.0)
    kill_part(up, part)
    wait_until("the front door answers", lambda: up.door.status() is not None, 30.0)
    wait_until("so does the broker", lambda: up.door.get("/readyz").status_code == 200, 30.0)
    answers = up.door.finals(rids, 60.0)
    assert {answer["status"] for answer in answers} == {"finished"}
    assert {answer["usage"]["completion_tokens"] for answer in answers} == {10}
    assert up.door.counters()["finished"] == len(rids)


def test_a_broker_of_ones_own_that_is_away_is_told_and_then_waited_for(
    up: Launcher, tmp_path: Path
) -> None:
    server = Server(tmp_path)
    try:
        up.start(REDIS_URL=server.url, API_KEYS="a-key")
        wait_until(
            "its line says so", lambda: "external  the broker does not answer" in up.said(), 30.0
        )
        server.start()
        wait_until("the service says ok", lambda: up.door.status() == "ok", START_LIMIT_S)
        wait_until("its line says so too", lambda: "external  answers" in up.said(), 30.0)
        wait_until("a hint that works is shown", lambda: "Bearer <one of" in up.said(), 10.0)
        assert up.down()[0] == 0
    finally:
        up.close()
        server.stop()
