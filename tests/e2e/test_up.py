"""`up` with the real engine: from nothing to an answer, killed in the middle of its work, started again, stopped."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.launcher import Launcher
from tests.e2e.places import wait_until

pytestmark = [pytest.mark.engine, pytest.mark.timeout(360)]

START_LIMIT_S = 150.0
GONE_LIMIT_S = 8.0
NEW_TOKENS = 40
SETTINGS = {"ENGINE": "vllm_async", "KV_CACHE_GIB": "1", "VLLM_MAX_NUM_SEQS": "4", "WORKERS": "1"}


@pytest.fixture
def up(tmp_path: Path, model: Path) -> Iterator[Launcher]:
    launcher = Launcher(tmp_path, MODEL_DIR=str(model), **SETTINGS)
    yield launcher
    launcher.close()


def test_what_was_queued_when_up_was_killed_is_answered_after_the_next_start(up: Launcher) -> None:
    up.start()
    up.wait_for("warming", 30.0)
    # The front door answers while the engine loads: what comes now waits its turn.
    early = up.door.submit(prompt="What is the capital of France?", max_tokens=16, temperature=0)
    up.wait_for("ok", START_LIMIT_S)
    assert "Paris" in up.door.final(early, 60.0)["text"]
    assert up.door.predict("What is the capital of France?") == "The capital of France is Paris."

    rids = [
        up.door.submit(
            prompt=f"Name {n} things that float.",
            max_tokens=NEW_TOKENS,
            ignore_eos=True,
            temperature=0,
        )
        for n in range(1, 17)
    ]

    def states() -> list[str]:
        return [up.door.look(rid)["status"] for rid in rids]

    wait_until("some run", lambda: "running" in states(), 30.0)
    assert "pending" in states()
    family = up.family()
    assert family.has_engine()
    up.kill()
    wait_until("nothing of it is left", family.is_gone, GONE_LIMIT_S)
    assert up.processes() == []

    # What is asked of the second start is that the queue has kept everything; a model is not needed for that.
    up.start(ENGINE="simulated")
    up.wait_for("ok", START_LIMIT_S)
    answers = up.door.finals(rids, 120.0)
    assert {answer["status"] for answer in answers} == {"finished"}
    assert {answer["usage"]["completion_tokens"] for answer in answers} == {NEW_TOKENS}
    assert up.door.get("/queue").json()["counters"]["finished"] == len(rids) + 2

    family = up.family()
    code, said = up.down()
    assert code == 0, said
    assert said.splitlines()[-1] == "stopped"
    assert up.process.wait(10) == 0
    assert family.is_gone()
    assert up.processes() == []
