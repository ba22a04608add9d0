"""Supervision with real processes: a part that dies comes back, the line says why, and a stop
leaves nothing.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest

from cli import processes
from cli.settings import inherited
from cli.supervisor import End, Life, Part, Supervised
from tests.cli.processes_under_test import all_gone, family, family_command


def part_of(folder: Path, *command: str, grace_s: float = 5.0) -> Part:
    return Part("part", command, inherited(), folder / "part.log", folder / "part.json", grace_s)


class Lines:
    """Collects the lines of state, and lets a test wait for one."""

    def __init__(self) -> None:
        self.all: list[str] = []
        self._new = asyncio.Event()

    def __call__(self, name: str, text: str) -> None:
        assert name == "part"
        self.all.append(text)
        self._new.set()

    async def until(self, start: str, times: int = 1, limit_s: float = 60.0) -> str:
        async with asyncio.timeout(limit_s):
            while sum(line.startswith(start) for line in self.all) < times:
                self._new.clear()
                await self._new.wait()
        return [line for line in self.all if line.startswith(start)][-1]


async def at_once(_: Life) -> str | None:
    return "ready"


async def test_a_part_that_is_killed_comes_back_and_the_line_says_why(tmp_path: Path) -> None:
    lines = Lines()
    part = Supervised(part_of(tmp_path, *family_command(tmp_path)), lines, at_once)
    part.start()
    await lines.until("ready")
    first = await asyncio.to_thread(family, tmp_path)
    for name in first:
        (tmp_path / name).unlink()
    os.kill(first["main"], signal.SIGKILL)

    died = await lines.until("died")
    assert died.startswith(
        "died (killed by SIGKILL, by hand or for lack of memory); starts again in 0.5 s"
    )
    assert all_gone(list(first.values()))  # what it left is gone before it is started again
    await lines.until("ready", times=2)
    second = await asyncio.to_thread(family, tmp_path)
    assert second["main"] != first["main"]

    await part.stop()
    assert lines.all[-2:] == ["stopping…", "stopped"]
    assert all_gone(list(second.values()))


async def test_a_part_that_cannot_start_is_tried_with_growing_waits(tmp_path: Path) -> None:
    lines = Lines()
    command = (sys.executable, "-c", "print('hello'); raise SystemExit('no such device')")
    part = Supervised(part_of(tmp_path, *command), lines, never)
    part.start()
    await lines.until("died", times=3)
    died = [line for line in lines.all if line.startswith("died")]
    assert all("exit code 1: no such device" in line for line in died)
    waits = [float(line.rsplit(" ", 2)[1]) for line in died]
    assert waits[0] == 0.5
    assert 0.5 <= waits[1] <= 1.0 <= waits[2] <= 2.0
    await part.stop()  # between two lives
    assert lines.all[-1] == "stopped"


async def never(_: Life) -> str | None:
    return None


async def test_a_part_that_never_served_is_given_up_after_its_tries(tmp_path: Path) -> None:
    lines = Lines()
    told: list[str] = []
    command = (sys.executable, "-c", "raise SystemExit('no such device')")
    part = Supervised(part_of(tmp_path, *command), lines, never, on_hopeless=told.append, tries=2)
    part.start()
    line = await lines.until("failed")
    assert told == ["ended 2 times and was never ready (exit code 1: no such device)"]
    assert line == f"failed: {told[0]}"
    await part.stop()


async def test_a_part_that_has_served_is_never_given_up(tmp_path: Path) -> None:
    lines = Lines()
    told: list[str] = []
    part = Supervised(
        part_of(tmp_path, "sleep", "600"), lines, at_once, on_hopeless=told.append, tries=2
    )
    part.start()
    for times in (1, 2, 3):
        await lines.until("ready", times=times)
        assert part.life is not None
        while part.life.pid is None:
            await asyncio.sleep(0.01)
        os.kill(part.life.pid, signal.SIGKILL)
        await lines.until("died", times=times)
    assert told == []
    await part.stop()


async def test_a_reason_that_was_published_stands_over_the_last_line(tmp_path: Path) -> None:
    async def why(_: Life) -> str | None:
        return "model has no chat template"

    lines = Lines()
    command = (sys.executable, "-c", "print('Traceback'); raise SystemExit(1)")
    part = Supervised(part_of(tmp_path, *command), lines, never, why)
    part.start()
    assert "died (model has no chat template)" in await lines.until("died")
    await part.stop()


async def test_a_killed_guard_is_found_out_and_the_rest_of_its_part_ended(tmp_path: Path) -> None:
    lines = Lines()
    part = Supervised(part_of(tmp_path, *family_command(tmp_path)), lines, at_once)
    part.start()
    await lines.until("ready")
    pids = await asyncio.to_thread(family, tmp_path)
    guard = next(p for p in processes.all_processes().values() if p.pid == pids["main"]).parent
    os.kill(guard, signal.SIGKILL)

    assert "its guard was killed" in await lines.until("died")
    assert all_gone([pids["main"], pids["child"]])
    os.kill(pids["stray"], signal.SIGKILL)  # it left the group: only its guard could have known it
    await part.stop()


async def test_hurry_leaves_no_grace(tmp_path: Path) -> None:
    lines = Lines()
    script = "trap 'echo draining' TERM; echo up; while :; do sleep 0.05; done"
    part = Supervised(part_of(tmp_path, "sh", "-c", script, grace_s=600.0), lines, said_up)
    part.start()
    await lines.until("ready")
    stopping = asyncio.create_task(part.stop())
    await lines.until("stopping")
    part.hurry()
    async with asyncio.timeout(10):
        await stopping
    assert lines.all[-1] == "stopped"


async def said_up(life: Life) -> str | None:
    return "ready" if life.part.log.exists() and "up" in life.part.log.read_text() else None


async def test_one_life_with_echo_gives_its_lines_and_its_last_one(tmp_path: Path) -> None:
    seen: list[str] = []
    command = (sys.executable, "-c", "print('10 %'); print('50 %'); print('/a/folder')")
    life = await Life.start(part_of(tmp_path, *command), echo=True)
    end = await life.end(seen.append)
    assert end == End(0, None, "/a/folder")
    assert seen == ["10 %", "50 %", "/a/folder"]


@pytest.mark.parametrize(
    ("end", "reason"),
    [
        (End(1, None, ""), "exit code 1"),
        (End(None, "SIGKILL", "all is well"), "killed by SIGKILL, by hand or for lack of memory"),
        (End(None, "SIGSEGV", "loading"), "killed by SIGSEGV: loading"),
        (End(2, None, "x" * 1000), "exit code 2: " + "x" * 300),
    ],
)
def test_an_end_is_told_in_one_short_line(end: End, reason: str) -> None:
    assert end.reason() == reason
