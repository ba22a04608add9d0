"""Every setting is listed in `.env.example` with its default, and described in `docs/configuration.md`."""

from __future__ import annotations

import importlib
import os
import re
from collections.abc import Iterator

import pytest

from shared.settings import Settings
from tests.architecture.source_tree import ROOT, modules

LINE = re.compile(r"# ([A-Z][A-Z0-9_]*)=(.*)")
# `make up` takes an unset REDIS_URL for "start a broker here"; a part alone has an address to try.
UNSET_MEANS = ("UpSettings", "redis_url")
EMPTY: tuple[object, ...] = (None, "", (), [], {})


def classes() -> Iterator[type[Settings]]:
    """Every settings class of the service, each once."""
    for module in modules("api", "cli", "shared", "worker"):
        if module.path.name == "settings.py":
            found = vars(importlib.import_module(module.name)).values()
            for value in found:
                if (
                    isinstance(value, type)
                    and issubclass(value, Settings)
                    and value is not Settings
                    and value.__module__ == module.name
                ):
                    yield value


CLASSES = list(classes())
FIELDS = [(kind, name) for kind in CLASSES for name in kind.model_fields]
NAMES = sorted({name.upper() for _, name in FIELDS})


def listed() -> dict[str, tuple[str, str]]:
    """Name to value and meaning: `.env.example` has a line of meaning above each `# NAME=value`."""
    found: dict[str, tuple[str, str]] = {}
    above = ""
    for line in (ROOT / ".env.example").read_text("utf-8").splitlines():
        match = LINE.fullmatch(line)
        if match:
            name, value = match.groups()
            assert name not in found, f"{name} is listed twice"
            found[name] = (value, "" if LINE.fullmatch(above) else above.removeprefix("# "))
        above = line
    return found


def test_there_are_settings_classes() -> None:
    assert len(CLASSES) >= 5


def test_dot_env_example_lists_exactly_the_settings_there_are() -> None:
    assert sorted(listed()) == NAMES


def test_every_setting_has_one_line_of_meaning() -> None:
    silent = [name for name, (_, meaning) in listed().items() if len(meaning) < 8]
    assert not silent


def test_every_line_of_dot_env_example_is_a_comment() -> None:
    """Copied as it is, it changes nothing."""
    text = (ROOT / ".env.example").read_text("utf-8")
    assert [line for line in text.splitlines() if line and not line.startswith("#")] == []


@pytest.mark.parametrize(
    ("kind", "name"), FIELDS, ids=[f"{kind.__name__}.{name}" for kind, name in FIELDS]
)
def test_the_listed_value_is_the_default(
    kind: type[Settings], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in [v for v in os.environ if v.upper() in NAMES]:
        monkeypatch.delenv(variable)
    value = listed()[name.upper()][0] if (kind.__name__, name) != UNSET_MEANS else ""
    plain = kind(_env_file=None)
    if value:
        monkeypatch.setenv(name.upper(), value)
        assert getattr(kind(_env_file=None), name) == getattr(plain, name)
    else:
        assert getattr(plain, name) in EMPTY, "an empty value stands for no default"


def test_a_name_has_one_default_in_all_processes() -> None:
    defaults: dict[str, dict[str, object]] = {}
    for kind, name in FIELDS:
        if (kind.__name__, name) != UNSET_MEANS:
            default = kind.model_fields[name].get_default(call_default_factory=True)
            defaults.setdefault(name.upper(), {})[kind.__name__] = default
    differing = {n: by for n, by in defaults.items() if len(set(map(repr, by.values()))) > 1}
    assert not differing


def test_every_setting_is_described_in_the_docs() -> None:
    page = (ROOT / "docs" / "configuration.md").read_text("utf-8")
    rows = re.findall(r"^\| `([A-Z][A-Z0-9_]*)` \|", page, re.MULTILINE)
    assert sorted(set(rows)) == NAMES


def test_the_docs_say_the_same_default_as_dot_env_example() -> None:
    page = (ROOT / "docs" / "configuration.md").read_text("utf-8")
    rows = re.findall(r"^\| `([A-Z][A-Z0-9_]*)` \| (.*?) \|", page, re.MULTILINE)
    values = listed()
    differing = [
        (name, cell, values[name][0])
        for name, cell in rows
        if cell.replace("\\|", "|") != (f"`{values[name][0]}`" if values[name][0] else "unset")
    ]
    assert not differing


def test_limits_stand_in_one_table() -> None:
    from api.settings import LIMITS

    page = (ROOT / "docs" / "configuration.md").read_text("utf-8")
    section = page.partition("\n## Limits\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `([A-Z][A-Z0-9_]*)` \|", section, re.MULTILINE)
    assert set(LIMITS) <= set(rows)
