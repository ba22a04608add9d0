"""What the documents say can be done can be done: targets, modules, commands, paths and links are there."""

from __future__ import annotations

import posixpath
import re

import pytest
import yaml

from api.app import build_app
from api.settings import ApiSettings
from cli.__main__ import app as cli_app
from tests.architecture.source_tree import PARTS, ROOT, files
from tests.docs import pages

COMMANDS = {
    c.name or (c.callback.__name__ if c.callback else "") for c in cli_app.registered_commands
}
TARGETS = set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
TOPS = (*PARTS, "tests", "docs", "deploy", "examples", "requirements")
# What is made while it runs, or belongs to the user.
NOT_IN_GIT = ("model/", "data/", "merged", ".venv", "build/")


@pytest.fixture(params=pages.NAMES)
def page(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_make_targets_are_there(page: str) -> None:
    named = {t for code in pages.code(page) for t in re.findall(r"\bmake ([a-z][a-z0-9-]*)", code)}
    assert named <= TARGETS, f"no target: {sorted(named - TARGETS)}"


def test_modules_are_there(page: str) -> None:
    named = {m for code in pages.code(page) for m in re.findall(r"\bpython3? -m ([\w.]+)", code)}
    for module in named - {"venv", "pytest", "pip"}:
        path = module.replace(".", "/")
        there = (f"{path}.py", f"{path}/__main__.py")
        assert any(name in files() for name in there) or module.endswith(".X"), module


def test_commands_of_the_command_line_are_there(page: str) -> None:
    named = {
        c for code in pages.code(page) for c in re.findall(r"\bpython3? -m cli ([a-z]+)", code)
    }
    assert named <= COMMANDS


def test_paths_are_there(page: str) -> None:
    """Inline code that looks like a path in the tree is one."""
    known = files()
    there = known | {parent for path in known for parent in parents(path)}
    wrong = [span for span in pages.spans(page) if is_path(span) and span.rstrip("/") not in there]
    assert not wrong


def is_path(span: str) -> bool:
    top, slash, _ = span.partition("/")
    has_form = re.fullmatch(r"[\w.-]+(/[\w.-]+)*/?", span) is not None
    return bool(slash) and has_form and top in TOPS and not span.startswith(NOT_IN_GIT)


def parents(path: str) -> list[str]:
    found = []
    while path := posixpath.dirname(path):
        found.append(path)
    return found


def test_links_lead_somewhere(page: str) -> None:
    here = posixpath.dirname(page)
    for link in pages.links(page):
        if re.match(r"https?://", link):
            continue
        target, _, anchor = link.partition("#")
        path = posixpath.normpath(posixpath.join(here, target)) if target else page
        assert path in files() or (ROOT / path).is_dir(), link
        if anchor:
            assert anchor in pages.anchors(path), link


def test_paths_of_the_service_are_routes() -> None:
    app = build_app(ApiSettings(_env_file=None))
    routes = [re.sub(r"\{\w+\}", "[^/]+", getattr(r, "path", "")) for r in app.routes]
    shapes = (
        r"(?:127\.0\.0\.1|localhost):8\d+(/[\w/{}.$<>-]*)",
        r"\b(?:GET|POST|PUT|DELETE) (/[\w/{}.-]*)",
    )
    named = [
        (page, path)
        for page in pages.NAMES
        for code in pages.code(page)
        for shape in shapes
        for path in re.findall(shape, code)
    ]
    wrong = [(p, path) for p, path in named if not any(re.fullmatch(r, path) for r in routes)]
    assert named
    assert not wrong


def test_services_and_profiles_of_compose_are_there(page: str) -> None:
    compose = yaml.safe_load((ROOT / "docker-compose.yml").read_text("utf-8"))
    profiles = {p for s in compose["services"].values() for p in s.get("profiles", ())}
    for code in pages.code(page):
        for line in (line for line in code.splitlines() if "docker compose" in line):
            assert set(re.findall(r"--profile (\w+)", line)) <= profiles
            assert set(re.findall(r"--scale ([\w-]+)=", line)) <= set(compose["services"])


def test_images_that_are_built_have_a_dockerfile(page: str) -> None:
    for code in pages.code(page):
        for path in re.findall(r"docker build[^\n]*-f (\S+)", code):
            assert path in files()
