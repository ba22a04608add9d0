"""The images, checked without an engine: what they copy and install is what their process needs."""

from __future__ import annotations

import fnmatch
import http.server
import re
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from cli.install import TORCH
from cli.parts import API_MARGIN_S, BROKER_GRACE_S, WORKER_MARGIN_S
from cli.settings import UpSettings
from tests.architecture.source_tree import ROOT, files
from tests.docs import pages
from tests.docs.dockerfile import FOLDER, NAMES, Dockerfile

SERVICES = ("api", "worker-cpu", "worker-gpu", "all-in-one")
# Refuses every import of a package that the named locks do not pin, then imports what the image runs.
ONLY_LOCKED = """
import importlib.metadata, re, sys
from importlib.abc import MetaPathFinder

pinned = set()
for path in sys.argv[2:]:
    for line in open(path):
        if (name := re.match(r"[A-Za-z0-9._-]+(?===)", line)):
            pinned.add(re.sub(r"[-_.]+", "-", name.group()).lower())
owners = importlib.metadata.packages_distributions()

class OnlyLocked(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        owned_by = {re.sub(r"[-_.]+", "-", d).lower() for d in owners.get(name.partition(".")[0], ())}
        if owned_by and not owned_by & pinned:
            raise ModuleNotFoundError(f"{name} is of {owned_by}, which is in no lock of this image", name=name)
        return None

sys.meta_path.insert(0, OnlyLocked())
sys.path.insert(0, ".")
exec(sys.argv[1])
heavy = {"torch", "vllm", "transformers"} & set(sys.modules)
assert not heavy, heavy
"""


@pytest.fixture(params=NAMES)
def image(request: pytest.FixtureRequest) -> Dockerfile:
    return Dockerfile.read(request.param)


def ignored(path: str) -> bool:
    """Whether `.dockerignore` keeps a path out of the build: the last pattern that matches decides."""
    out = False
    for line in (ROOT / ".dockerignore").read_text().splitlines():
        pattern = line.strip()
        if not pattern or pattern.startswith("#"):
            continue
        keeps = pattern.startswith("!")
        if matches(path, pattern.removeprefix("!")):
            out = not keeps
    return out


def matches(path: str, pattern: str) -> bool:
    """A pattern also takes everything below what it names; `**/` is any depth."""
    parents = [path, *map(str, Path(path).parents)]
    return any(
        fnmatch.fnmatchcase(p, pattern)
        or fnmatch.fnmatchcase("/" + p, pattern.replace("**/", "*/"))
        for p in parents
        if p != "." and (p.count("/") == pattern.count("/") or "**" in pattern)
    )


def test_there_is_an_image_for_each_way_to_run() -> None:
    assert set(NAMES) == set(SERVICES)


def test_base_is_pinned(image: Dockerfile) -> None:
    stages = {i.words[2] for i in image.all("FROM") if len(i.words) == 3}
    for base in (i.words[0] for i in image.all("FROM")):
        if base in stages or base == "packages-${TARGETARCH}":
            continue
        assert re.fullmatch(r"python:3\.11-slim-\w+", base), base


def test_process_is_not_root(image: Dockerfile) -> None:
    words = [i.word for i in image.instructions]
    assert image.only("USER") == "sluice"
    assert words.index("USER") < words.index("CMD")
    assert "useradd --uid 10001" in " ".join(i.rest for i in image.all("RUN"))


def test_packages_come_before_code(image: Dockerfile) -> None:
    """A change of code must not install 150 packages again."""
    text = [f"{i.word} {i.rest}" for i in image.instructions]
    installs = [n for n, line in enumerate(text) if "pip install" in line]
    code = [n for n, line in enumerate(text) if line.startswith("COPY shared")]
    assert installs
    assert max(installs) < min(code)


def test_stops_by_signal_and_reports_health(image: Dockerfile) -> None:
    assert image.only("STOPSIGNAL") == "SIGTERM"
    probe = re.search(r'"deploy/docker/probe.py", "(\d+)", "/livez"', image.only("HEALTHCHECK"))
    assert probe is not None
    assert image.only("EXPOSE") == probe.group(1)
    assert probe.group(1) in (image.env().get("PORT"), image.env().get("WORKER_PORT"))


def test_copies_what_is_there_and_not_ignored(image: Dockerfile) -> None:
    for source in image.copies():
        found = [p for p in files() if fnmatch.fnmatchcase(p, source) or p.startswith(source + "/")]
        kept = [path for path in found if not ignored(path)]
        assert kept, f"COPY {source} finds nothing"


def test_secrets_and_data_stay_out_of_the_build() -> None:
    for path in (".env", "data/broker/x.aof", "model/org/name/model.safetensors", ".git/config"):
        assert ignored(path), path
    assert ignored("api/__pycache__/app.cpython-311.pyc")
    assert not ignored("api/routes/predict.py")


def test_torch_is_the_one_that_set_up_installs(image: Dockerfile) -> None:
    named = image.args().get("TORCH")
    assert named in (None, TORCH)
    assert (named is None) == (image.path.name in ("api.Dockerfile", "worker-gpu.Dockerfile"))


def test_locks_are_installed_as_they_are(image: Dockerfile) -> None:
    for run in image.all("RUN"):
        for command in re.findall(r"pip install[^&;|]*", run.rest):
            assert "--no-deps -r" in command or '"${TORCH}"' in command, command


def test_each_image_has_its_lock() -> None:
    assert Dockerfile.read("api").locks() == {"api"}
    assert Dockerfile.read("worker-cpu").locks() == {"worker-cpu"}
    assert Dockerfile.read("worker-gpu").locks() == {"worker-cuda"}
    assert Dockerfile.read("all-in-one").locks() == {"worker-cpu", "api", "cli"}


def test_commands_are_modules_that_are_copied(image: Dockerfile) -> None:
    named = re.findall(r"python -m ([\w.]+)", " ".join(image.command()))
    assert named
    for module in named:
        path = ROOT / module.replace(".", "/")
        assert (path / "__main__.py").is_file() or path.with_suffix(".py").is_file()
        assert module.partition(".")[0] in image.copies()


@pytest.mark.parametrize("name", ["worker-cpu", "worker-gpu"])
def test_a_worker_takes_the_place_of_its_shell(name: str) -> None:
    """Otherwise the signal to stop would reach the shell alone."""
    shell, flag, line = Dockerfile.read(name).command()
    assert (shell, flag) == ("sh", "-c")
    assert line.endswith("&& exec python -m worker")


def test_all_in_one_serves_everybody_on_port_8000_and_asks_no_hub() -> None:
    image = Dockerfile.read("all-in-one")
    env = image.env()
    assert image.command() == ["python", "-m", "cli", "up"]
    assert (env["HOST"], env["PORT"], env["ALLOW_ANONYMOUS"]) == ("0.0.0.0", "8000", "1")
    assert "API_KEYS" not in env
    assert env["HF_HUB_OFFLINE"] == "1"
    words = [f"{i.word} {i.rest}" for i in image.instructions]
    pull = words.index("RUN python -m cli pull")
    assert words.index("ARG MODEL_ID=") < pull
    assert pull < next(n for n, line in enumerate(words) if "HF_HUB_OFFLINE=1" in line)


def shown_runs(image: str) -> list[str]:
    """Every `docker run` of an image with its name written out, in the pages and on top of the Dockerfiles."""
    lines = [
        line for page in pages.NAMES for code in pages.code(page) for line in code.splitlines()
    ]
    for path in FOLDER.glob("*.Dockerfile"):
        lines += [line.lstrip("# ") for line in path.read_text("utf-8").splitlines()]
    return [line for line in lines if re.match(rf"docker run .* {image}$", line)]


def stop_timeout_s(line: str) -> float:
    found = re.search(r"--stop-timeout (\d+) ", line)
    return float(found[1]) if found else 10.0  # Docker's own


def test_the_whole_service_is_shown_with_a_volume_and_time_to_stop() -> None:
    """A run that is copied from the pages must not throw the queue away, nor kill what is draining."""
    settings = UpSettings(_env_file=None)
    worker_s = settings.drain_s + WORKER_MARGIN_S
    needs_s = worker_s + settings.api_drain_s + API_MARGIN_S + BROKER_GRACE_S
    runs = shown_runs("sluice")
    assert len(runs) >= 2
    for line in runs:
        assert re.search(r"-v \w+:/data ", line), line
        assert stop_timeout_s(line) > needs_s, line
    for line in shown_runs("sluice-worker-gpu"):
        assert stop_timeout_s(line) > worker_s, line


@pytest.mark.parametrize(
    ("name", "lines"),
    [
        (
            "api",
            (
                "import api.app, api.__main__; from api.settings import ApiSettings; "
                "api.app.build_app(ApiSettings(_env_file=None))"
            ),
        ),
        ("worker-cpu", "import worker.__main__, worker.model, worker.loop, worker.metrics"),
        ("worker-gpu", "import worker.__main__, worker.model, worker.loop, worker.metrics"),
        ("all-in-one", "import cli.__main__, cli.up, api.app, worker.__main__"),
    ],
)
def test_process_starts_with_what_its_image_has(name: str, lines: str, tmp_path: Path) -> None:
    """Given the folders that the image copies and the packages of its locks, nothing is missing."""
    image = Dockerfile.read(name)
    for source in image.copies():
        if (ROOT / source).is_dir():
            shutil.copytree(
                ROOT / source, tmp_path / source, ignore=shutil.ignore_patterns("__pycache__")
            )
    locks = [str(ROOT / "requirements" / f"{lock}.txt") for lock in image.locks()]
    done = subprocess.run(
        [sys.executable, "-I", "-c", ONLY_LOCKED, lines, *locks],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr


class Answering(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200 if self.path == "/livez" else 503)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass


def test_probe_tells_a_healthy_service_from_a_sick_one_and_from_none() -> None:
    def probe(port: int, path: str) -> int:
        command = [sys.executable, str(FOLDER / "probe.py"), str(port), path]
        return subprocess.run(command, timeout=30).returncode

    with http.server.HTTPServer(("127.0.0.1", 0), Answering) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        port = server.server_address[1]
        assert probe(port, "/livez") == 0
        assert probe(port, "/readyz") == 1
        server.shutdown()
    assert probe(port, "/livez") == 1
