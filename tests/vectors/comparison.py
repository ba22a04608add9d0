"""What is wanted against what came: exactly, or only as far as it is said."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple

SHOWN_CHARS = 300
_TYPES = {"int": int, "str": str, "bool": bool, "float": float, "list": list, "dict": dict}


class Difference(NamedTuple):
    """`where` inside the output, "" for all of it."""

    where: str
    wanted: Any
    got: Any

    def __str__(self) -> str:
        place = f"{self.where}: " if self.where else ""
        return f"{place}wanted {_shown(self.wanted)}, got {_shown(self.got)}"


Differences = list[Difference]


def exact(wanted: Any, got: Any, where: str = "") -> Differences:
    """Equal as JSON values: true is not 1, and no key is left over."""
    return _compare(wanted, got, where, is_partial=False)


def partial(wanted: Any, got: Any, where: str = "") -> Differences:
    """All that is wanted is there; objects may have more keys. Lists have their length."""
    return _compare(wanted, got, where, is_partial=True)


def stated(wanted: Any, known: Collection[str], where: str = "") -> Differences:
    """What a check cannot hold against anything: fields that it does not know, and an output without one that
    it does, which would pass for whatever came.
    """
    if not isinstance(wanted, dict):
        return [Difference(where, wanted, "an output that is no object of fields")]
    unknown = [name for name in wanted if name not in known]
    if not wanted.keys() - set(unknown):
        return [Difference(where, wanted, "an output that states nothing")]
    return [
        Difference(
            f"{where}.{name}".lstrip("."), wanted[name], "a field that this runner does not know"
        )
        for name in unknown
    ]


def with_types(wanted: Any, got: Any) -> Any:
    """`wanted` with what stands for a value put in its place: the name of its type, or the length and the
    ends of a long text. Where the value is not of that kind, what is wanted stays.
    """
    if isinstance(wanted, str) and wanted in _TYPES and type(got) is _TYPES[wanted]:
        return got
    if is_digest(wanted) and isinstance(got, str):
        first, last = len(wanted["first"]), len(wanted["last"])
        digest = {"len": len(got), "first": got[:first], "last": got[len(got) - last :]}
        return got if digest == wanted else wanted
    if isinstance(wanted, dict) and isinstance(got, dict):
        return {key: with_types(value, got.get(key)) for key, value in wanted.items()}
    if isinstance(wanted, list) and isinstance(got, list) and len(wanted) == len(got):
        return [with_types(one, other) for one, other in zip(wanted, got, strict=True)]
    return wanted


def is_digest(value: Any) -> bool:
    """How files write down a long text."""
    return isinstance(value, dict) and value.keys() == {"len", "first", "last"}


def spelled_out(value: Any) -> Any:
    """The long text of a digest: its middle repeats the last character of its beginning."""
    if is_digest(value):
        first, last = value["first"], value["last"]
        return first + first[-1] * (value["len"] - len(first) - len(last)) + last
    if isinstance(value, dict):
        return {key: spelled_out(each) for key, each in value.items()}
    return [spelled_out(each) for each in value] if isinstance(value, list) else value


# What a clause means: the found value to what is wrong with it, with the match for its words.
Meaning = Callable[[re.Match[str], Any], Differences]


def prose(text: str, found: Any, meanings: Mapping[str, Meaning]) -> Differences:
    """Each clause of a right output in words, by the first pattern that matches all of it.

    A clause that nobody knows is a difference: what is not understood was not checked.
    """
    wrong: Differences = []
    for clause in (part.strip() for part in text.rstrip(".").split(";")):
        for pattern, meaning in meanings.items():
            match = re.fullmatch(pattern, clause, re.IGNORECASE)
            if match:
                wrong += meaning(match, found)
                break
        else:
            wrong.append(Difference("words that this runner does not know", clause, found))
    return wrong


def _compare(wanted: Any, got: Any, where: str, *, is_partial: bool) -> Differences:
    if isinstance(wanted, dict) and isinstance(got, dict):
        missing = object()
        wrong: Differences = []
        for key, value in wanted.items():
            place = f"{where}.{key}".lstrip(".")
            found = got.get(key, missing)
            if found is missing:
                wrong.append(Difference(place, value, "nothing"))
            else:
                wrong += _compare(value, found, place, is_partial=is_partial)
        more = [] if is_partial else [key for key in got if key not in wanted]
        return wrong + [Difference(f"{where}.{k}".lstrip("."), "nothing", got[k]) for k in more]
    if isinstance(wanted, list) and isinstance(got, list) and len(wanted) == len(got):
        return [
            different
            for at, (one, other) in enumerate(zip(wanted, got, strict=True))
            for different in _compare(one, other, f"{where}[{at}]", is_partial=is_partial)
        ]
    is_same = wanted == got and isinstance(wanted, bool) == isinstance(got, bool)
    return [] if is_same else [Difference(where, wanted, got)]


def _shown(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, default=repr)
    return text if len(text) <= SHOWN_CHARS else f"{text[:SHOWN_CHARS]}… ({len(text)} characters)"
