"""How variables are read: flags, numbers that are none, and the clamps of the warm-up."""

from __future__ import annotations

import re
from typing import Any

from api.settings import ApiSettings
from shared.settings import Settings, seed
from tests.vectors.comparison import Difference, Differences, exact, prose, stated
from tests.vectors.surroundings import Surroundings
from tests.vectors.vector import Vector
from worker.settings import WorkerSettings


class _OnByDefault(Settings):
    some_flag: bool = seed(True)


class _OffByDefault(Settings):
    some_flag: bool = seed(False)


def env_flag(vector: Vector, around: Surroundings) -> Differences:
    kind = _OnByDefault if vector.input["default"] else _OffByDefault
    return exact(vector.wanted, kind.load().some_flag)


def module_import(vector: Vector, around: Surroundings) -> Differences:
    """Both processes read their settings; `value` is that of each variable that is set."""
    owners = {name: kind for kind in (WorkerSettings, ApiSettings) for name in kind.model_fields}
    loaded: dict[type[Settings], Settings] = {
        kind: kind.load() for kind in (ApiSettings, WorkerSettings)
    }
    wanted = vector.wanted
    wrong = stated(wanted, ("import", "value"))
    if wrong:
        return wrong
    if "import" in wanted:
        wrong += exact(wanted["import"], "ok", "import")
    if "value" in wanted and not vector.env:
        wrong.append(Difference("value", wanted["value"], "no variable that has one"))
    for name, text in vector.env.items():
        kind = owners.get(name.lower())
        if kind is None:
            wrong.append(Difference(name, "a setting", "none of that name"))
        elif "value" in wanted:
            field = kind.model_fields[name.lower()]
            found = {
                "name": name,
                "text": text,
                "value": getattr(loaded[kind], name.lower()),
                "default": field.get_default(call_default_factory=True, validated_data={}),
                "warnings": around.warnings,
            }
            wrong += _value(wanted["value"], found)
    return wrong


def _value(wanted: Any, found: dict[str, Any]) -> Differences:
    if isinstance(wanted, str):
        return prose(wanted, found, {"the default, with a warning naming the variable": _default})
    return exact(wanted, found["value"], found["name"])


def _default(words: re.Match[str], found: dict[str, Any]) -> Differences:
    """Blank counts as absent, and of what is absent nobody is warned."""
    name = found["name"]
    wrong = exact(found["default"], found["value"], name)
    is_told = any(name in line for line in found["warnings"])
    if found["text"].strip() and not is_told:
        wrong.append(Difference(name, "a warning that names it", found["warnings"]))
    return wrong


def warmup_settings(vector: Vector, around: Surroundings) -> Differences:
    """No file is "" in the recordings and none here."""
    settings = WorkerSettings.load()
    found = {
        "num_samples": settings.warmup_samples,
        "cap": settings.warmup_num_samples_cap,
        "repeat": settings.warmup_repeat,
        "data_path": settings.warmup_data_path or "",
    }
    return exact(vector.wanted, found)
