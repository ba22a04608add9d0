"""The peers of `bench.queue`: how they are asked, how often they look, and where they are installed."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

from bench import queue
from bench.load import Run
from bench.peers import venv
from bench.peers.asking import Turn, measure, read, written
from bench.peers.peer import PEERS
from bench.settings import ROOT
from bench.stack import StackError


def side(answer: str = "no-op") -> SimpleNamespace:
    """Stands where a peer's module does; counts how many are in flight."""
    seen = SimpleNamespace(most=0, now=0)

    @asynccontextmanager
    async def asker(poll_s: float) -> AsyncIterator[Callable[[object], Awaitable[object]]]:
        async def ask(_: object) -> object:
            seen.now += 1
            seen.most = max(seen.most, seen.now)
            await asyncio.sleep(poll_s)
            seen.now -= 1
            return answer

        yield ask

    return SimpleNamespace(asker=asker, seen=seen)


async def test_a_turn_is_warmed_up_and_counted_with_so_many_in_flight() -> None:
    there = side()
    run = await measure(there, 0.001, Turn(8, seconds=9.0, warm_up_s=0.01, requests=40))
    assert (len(run.replies), there.seen.most) == (40, 8)


async def test_a_turn_takes_its_seconds_on_every_machine() -> None:
    run = await measure(side(), 0.001, Turn(2, seconds=0.1, warm_up_s=0.0))
    assert 0.1 <= run.seconds < 1
    assert len(run.latencies_s) == len(run.replies) > 2


async def test_a_peer_that_answers_something_else_is_not_measured() -> None:
    with pytest.raises(ValueError, match="nothing"):
        await measure(side("nothing"), 0.0, Turn(1, 0.1, 0.0))


def test_what_was_measured_comes_over_as_it_is() -> None:
    run: Run[object] = Run(2.0, [0.1, 0.3], [None, None])
    assert read(written(run)) == run
    assert json.loads(written(run)) == {"seconds": 2.0, "latencies_s": [0.1, 0.3]}


def test_each_peer_has_a_lock_and_looks_more_often_than_by_default() -> None:
    assert [peer.name for peer in PEERS] == ["taskiq", "arq"]
    for peer in PEERS:
        assert (ROOT / "requirements" / f"peer-{peer.name}.txt").is_file()
        assert 0 < peer.pace(1).result_s <= peer.pace(64).result_s < 0.2
        assert peer.worker(peer.pace(1))


def test_an_environment_that_fits_its_lock_is_taken_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands: list[tuple[str, ...]] = []
    monkeypatch.setattr(venv, "FOLDER", tmp_path)
    monkeypatch.setattr(venv, "ROOT", tmp_path)
    monkeypatch.setattr(venv, "_run", lambda *command: commands.append(command))
    (tmp_path / "requirements").mkdir()
    lock = tmp_path / "requirements" / "peer-arq.txt"
    lock.write_text("arq==1\n")
    python = tmp_path / "arq" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.touch()
    assert venv.python_of("arq") == python
    assert [command[1:3] for command in commands] == [("-m", "venv"), ("-m", "pip")]
    assert venv.python_of("arq") == python
    assert len(commands) == 2
    lock.write_text("arq==2\n")
    venv.python_of("arq")
    assert len(commands) == 4


def test_a_peer_that_cannot_be_installed_is_told_with_the_reason() -> None:
    with pytest.raises(StackError, match="No module named no_such_module"):
        venv._run("python3", "-m", "no_such_module")


def test_every_turn_of_a_peer_comes_after_one_of_ours() -> None:
    order = [peer.name if peer else "we" for peer, _ in queue.in_turns(queue.LARGE, PEERS)]
    assert order == ["we", "taskiq", "we", "arq", "we", "arq", "we", "taskiq"]
    assert [peer for peer, _ in queue.in_turns(queue.LATENCY, ())] == [None]


def test_we_are_compared_with_the_better_of_the_two() -> None:
    def run(rate: int, latency_s: float) -> Run[object]:
        return Run(1.0, [latency_s] * rate, [None] * rate)

    runs = {"sluice": run(4000, 0.01), "taskiq": run(900, 0.06), "arq": run(1000, 0.08)}
    shown = {figure.name: figure for figure in queue.shown(runs, 64)}
    rate = shown["queue.64_in_flight.rate"]
    assert (rate.peer, rate.ratio, rate.ok) == (1000, 4.0, True)
    assert rate.target == "at least 4 times the peer"
    assert shown["queue.64_in_flight.latency_p50"].peer == pytest.approx(60)
    assert shown["queue.64_in_flight.taskiq.rate"].value == 900
    runs["arq"] = run(1001, 0.08)
    assert {f.name: f.ok for f in queue.shown(runs, 64)}["queue.64_in_flight.rate"] is False
