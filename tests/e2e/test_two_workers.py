"""Two vLLM workers on one queue, one killed with SIGKILL while it works: nothing is lost, doubled or left over."""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Iterator

import pytest

from tests.e2e.door import Door
from tests.e2e.places import wait_until
from tests.e2e.stack import Guarded, Stack

pytestmark = [pytest.mark.engine, pytest.mark.timeout(300)]

REQUESTS = 28
NEW_TOKENS = 48
# A killed engine is gone once the machine has its memory back, which under load takes seconds; one that nobody ends
# stays.
GONE_LIMIT_S = 30.0
# A lease, the look for it, then the rest of the work on the one worker that is left.
FINISH_LIMIT_S = 150.0


@pytest.fixture
def second(stack: Stack) -> Iterator[Guarded]:
    worker = stack.add_worker()
    yield worker
    worker.stop()


def test_a_killed_worker_costs_no_request_and_leaves_no_engine(
    stack: Stack, door: Door, second: Guarded
) -> None:
    before = Counter(door.counters())
    rids = [
        door.submit(
            prompt=f"Tell me about the number {n}.",
            max_tokens=NEW_TOKENS,
            ignore_eos=True,
            temperature=0,
        )
        for n in range(REQUESTS)
    ]

    def running_on() -> set[str]:
        shown = (door.look(rid) for rid in rids)
        return {s["worker"].split(".")[0] for s in shown if s["status"] == "running"}

    wait_until(
        "both run some", lambda: running_on() >= {"worker-1", second.part.name}, FINISH_LIMIT_S
    )

    family = second.family()
    assert family.has_engine(), "the engine is a process of its own below the worker"
    os.kill(second.pid, signal.SIGKILL)
    wait_until("nothing of the worker is left", family.is_gone, GONE_LIMIT_S)
    wait_until("nor of its group", lambda: second.group_size() == 0, GONE_LIMIT_S)

    answers = door.finals(rids, FINISH_LIMIT_S)
    assert {answer["status"] for answer in answers} == {"finished"}
    assert {answer["usage"]["completion_tokens"] for answer in answers} == {NEW_TOKENS}
    assert all(answer["text"] for answer in answers)
    tries = Counter(answer["attempts"] for answer in answers)
    assert tries[2] >= 1, "what ran on the killed worker ran once more"
    assert tries[1] + tries[2] == REQUESTS
    moved = [answer for answer in answers if answer["attempts"] == 2]
    assert {answer["worker"].split(".")[0] for answer in moved} == {"worker-1"}

    # Answered once: as many ends as requests, and what was answered stays as it is.
    after = Counter(door.counters())
    assert after["finished"] - before["finished"] == REQUESTS
    assert after["error"] == before["error"]
    assert after["cancelled"] == before["cancelled"]
    assert [door.look(rid) for rid in rids] == answers
    figures = door.get("/queue").json()
    assert (figures["queued"], figures["running"], figures["live"]) == (0, 0, 0)
    assert door.status() == "ok"
