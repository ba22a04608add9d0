"""Set-up: which set a machine gets, when nothing is to be done, and the errors that a newcomer
meets.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cli import install
from cli.install import InstallError, Machine, choose_set

ROOT = Path(install.__file__).parents[1]


@pytest.mark.parametrize(
    ("machine", "worker", "torch_apart"),
    [
        (Machine("Linux", "x86_64", has_gpu=True), "worker-cuda", False),
        (Machine("Linux", "aarch64", has_gpu=True), "worker-cuda", False),
        (Machine("Linux", "x86_64", has_gpu=False), "worker-cpu", True),
        (Machine("Linux", "aarch64", has_gpu=False), "worker-cpu", True),
        (Machine("Linux", "riscv64", has_gpu=False), "worker-transformers", True),
        (Machine("Darwin", "arm64", has_gpu=False), "worker-transformers", True),
    ],
)
def test_the_machine_decides_the_set(machine: Machine, worker: str, torch_apart: bool) -> None:
    chosen = choose_set(machine)
    assert (chosen.worker, chosen.torch_apart) == (worker, torch_apart)
    assert chosen.locks(dev=False) == ("api", "cli", worker)
    assert chosen.locks(dev=True) == ("api", "cli", worker, "dev")


def test_macos_is_told_that_transformers_serves() -> None:
    assert "transformers engine" in choose_set(Machine("Darwin", "arm64", has_gpu=False)).note


def test_an_unsupported_system_is_named() -> None:
    with pytest.raises(InstallError, match="Windows"):
        choose_set(Machine("Windows", "AMD64", has_gpu=False))


@pytest.mark.parametrize("version", [(3, 10), (3, 15), (2, 7)])
def test_a_python_that_does_not_fit_is_named(version: tuple[int, int]) -> None:
    with pytest.raises(InstallError, match=rf"Python {version[0]}\.{version[1]} does not fit"):
        install.check_python(version)


@pytest.mark.parametrize("version", [(3, 11), (3, 14)])
def test_a_python_that_fits_passes(version: tuple[int, int]) -> None:
    install.check_python(version)


def fake_root(folder: Path) -> Path:
    (folder / "requirements").mkdir()
    for name in ("api", "cli"):
        (folder / "requirements" / f"{name}.txt").write_text("x==1\n")
    return folder


def test_a_stamp_is_of_locks_python_and_set(tmp_path: Path) -> None:
    root = fake_root(tmp_path)
    stamp = install.stamp_text(root, ("api", "cli"), "python3.11")
    assert stamp == install.stamp_text(root, ("api", "cli"), "python3.11")
    others = {
        install.stamp_text(root, ("api",), "python3.11"),
        install.stamp_text(root, ("api", "cli"), "python3.12"),
    }
    (root / "requirements" / "cli.txt").write_text("x==2\n")
    others.add(install.stamp_text(root, ("api", "cli"), "python3.11"))
    assert stamp not in others
    assert len(others) == 3


def test_an_environment_without_its_python_is_not_current(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / install.STAMP).write_text("same\n")
    assert not install.is_current(tmp_path, ["same\n"])
    (tmp_path / "bin" / "python").touch()
    assert install.is_current(tmp_path, ["same\n"])
    assert not install.is_current(tmp_path, ["other\n"])


def test_a_package_that_was_unpacked_in_part_is_forgotten(tmp_path: Path) -> None:
    packages = tmp_path / "lib" / "python3.11" / "site-packages"
    for name in ("whole-1.dist-info", "half-1.dist-info"):
        (packages / name).mkdir(parents=True)
        (packages / name / "METADATA").touch()
    (packages / "whole-1.dist-info" / "INSTALLER").touch()
    install.forget_half_installed(tmp_path)
    assert [path.name for path in packages.iterdir()] == ["whole-1.dist-info"]


def test_a_failed_command_shows_its_last_lines(tmp_path: Path) -> None:
    with pytest.raises(InstallError, match="exit 3") as caught:
        install.run_quietly(["sh", "-c", "echo no such package; exit 3"], tmp_path / "log")
    assert "no such package" in str(caught.value)


def test_a_second_set_up_does_nothing_and_is_quick() -> None:
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "cli.install", "--dev"], capture_output=True, cwd=ROOT
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    assert time.monotonic() - began < 3.0  # 0.3 s on an idle machine


def test_set_up_needs_nothing_but_the_standard_library(tmp_path: Path) -> None:
    (tmp_path / "cli").mkdir()
    for name in ("__init__.py", "install.py"):
        shutil.copy(ROOT / "cli" / name, tmp_path / "cli" / name)
    done = subprocess.run(
        [
            sys.executable,
            "-I",
            "-S",
            "-c",
            "import sys; sys.path.insert(0, '.'); import cli.install",
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.stderr == ""


@pytest.mark.parametrize("lock", sorted((ROOT / "requirements").glob("*.in")), ids=lambda p: p.stem)
def test_every_lock_is_pinned_and_names_no_index(lock: Path) -> None:
    if lock.stem in ("shared", "worker"):  # included by others
        return
    lines = lock.with_suffix(".txt").read_text().splitlines()
    assert "make lock" in lines[1]
    pins = [line for line in lines if line.strip() and not line.startswith("#")]
    assert pins
    for pin in pins:
        assert re.match(r"[\w.-]+(\[[\w,-]+\])?==[\w.+]+( |$)", pin), pin
    assert not any("://" in line for line in lines)


def test_locks_that_are_installed_together_agree() -> None:
    def versions(name: str) -> dict[str, set[str]]:
        found: dict[str, set[str]] = {}
        for line in (ROOT / "requirements" / f"{name}.txt").read_text().splitlines():
            if match := re.match(r"([\w.-]+)==([\w.+]+)", line):
                found.setdefault(match[1], set()).add(match[2])
        return found

    for worker in ("worker-cpu", "worker-cuda", "worker-transformers"):
        wanted = versions(worker)
        for other in ("api", "cli", "dev"):
            for package, seen in versions(other).items():
                assert seen == wanted.get(package, seen), f"{package}: {worker} and {other}"


def test_the_api_lock_has_no_torch() -> None:
    text = (ROOT / "requirements" / "api.txt").read_text()
    assert "torch" not in text
    assert "transformers" not in text
