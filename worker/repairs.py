"""What can be mended when vLLM refuses to start: named steps from a failure to other arguments. Pure.

The first seed's ladder, in its order. A step looks at the failure's words and answers new arguments, or
None where it has nothing to offer. To add one: a function here, and a row in REPAIRS.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

INT_MAX = 2**31 - 1
AUTO_LENGTH = -1  # vLLM: the model's own length, or what the memory for keys and values allows
Arguments = Mapping[str, Any]

_ESTIMATE = re.compile(r"estimated maximum model length is\s+(\d{1,3}(?:,\d{3})+|\d+)")
# vLLM, where it takes the length of a model from its configuration.
_DERIVED = re.compile(r"greater than the derived max_model_len \([^=()]*=(\d+)")
_NO_MEMORY = ("Engine core initialization failed", "KV cache")


@dataclass(frozen=True)
class Machine:
    """What the steps know besides the failure."""

    has_metax: bool = False
    safe_max_model_len: int = 38_400
    model_len: int | None = None
    """The model's own length, where its configuration tells."""


class Step(Protocol):
    def __call__(
        self, arguments: Arguments, error: BaseException, machine: Machine
    ) -> dict[str, Any] | None: ...


def chain(error: BaseException) -> Iterator[BaseException]:
    """The error, then what caused it, suppressed contexts too; each once, so that a cycle ends."""
    seen: set[int] = set()
    at: BaseException | None = error
    while at is not None and id(at) not in seen:
        seen.add(id(at))
        yield at
        at = at.__cause__ or at.__context__


def estimated_max_len(error: BaseException) -> int | None:
    """The length that vLLM says would fit: of the first message with a number. Zero means that none does."""
    for each in chain(error):
        found = _ESTIMATE.search(str(each))
        if found:
            return int(found[1].replace(",", "")) or None
    return None


def fix_compilation_config(arguments: Arguments, text: str) -> dict[str, Any] | None:
    """Releases of vLLM want an object or its JSON; each says what it wants when it is given the other."""
    given = arguments.get("compilation_config")
    if given is None or "compilation_config" not in text:
        return None
    wants_object = "should be a dictionary" in text or "dataclass_type" in text
    wants_json = "json_invalid" in text or "Invalid JSON" in text
    if wants_object and isinstance(given, str):
        fixed: Any = _object(given, json.loads)
    elif wants_json:
        read = given if isinstance(given, dict) else _object(str(given), ast.literal_eval)
        fixed = None if read is None else json.dumps(read)
    else:
        return None
    if fixed is None or fixed == given:
        return None
    return {**arguments, "compilation_config": fixed}


def fix_load_format(arguments: Arguments, text: str) -> dict[str, Any] | None:
    """Leaves the format to vLLM where it does not know the one that was asked for."""
    given = arguments.get("load_format")
    if given is None:
        return None
    # Of old releases only `awq` was ever mended: a checkpoint's kind that users took for a format.
    is_old = given == "awq" and "is not a valid loadFormat" in text
    is_refused = "LoadConfig" in text and "load_format" in text
    if is_old or is_refused or f"Load format `{given}` is not supported" in text:
        return {name: value for name, value in arguments.items() if name != "load_format"}
    return None


def compilation_config(
    arguments: Arguments, error: BaseException, machine: Machine
) -> dict[str, Any] | None:
    return fix_compilation_config(arguments, str(error))


def load_format(
    arguments: Arguments, error: BaseException, machine: Machine
) -> dict[str, Any] | None:
    return fix_load_format(arguments, str(error))


def eager(arguments: Arguments, error: BaseException, machine: Machine) -> dict[str, Any] | None:
    """On MetaX whatever failed may have been the graphs."""
    if not machine.has_metax or arguments.get("enforce_eager"):
        return None
    return {**arguments, "enforce_eager": True}


def max_model_len(
    arguments: Arguments, error: BaseException, machine: Machine
) -> dict[str, Any] | None:
    """Never a longer one. What vLLM says that fits, or that the model has, stands over the constant; where it
    says that nothing fits, no length helps.
    """
    # The outermost words alone: vLLM's generic failure is beneath every error of its engine process.
    text = str(error)
    wanted = estimated_max_len(error)
    if wanted is None and not _says_an_estimate(error):
        derived = _DERIVED.search(text)
        if derived:
            wanted = int(derived[1])
        elif any(words in text for words in _NO_MEMORY):
            wanted = min(machine.safe_max_model_len, machine.model_len or INT_MAX)
    given = arguments.get("max_model_len", AUTO_LENGTH)
    if wanted is None or wanted < 1 or (type(given) is int and 0 < given <= wanted):
        return None
    return {**arguments, "max_model_len": wanted}


def _says_an_estimate(error: BaseException) -> bool:
    return any(_ESTIMATE.search(str(each)) for each in chain(error))


# In the order in which they are tried; the first that offers something is taken, each once for an engine.
REPAIRS: dict[str, Step] = {
    "compilation_config": compilation_config,
    "load_format": load_format,
    "enforce_eager": eager,
    "max_model_len": max_model_len,
}


def next_repair(
    arguments: Arguments, error: BaseException, machine: Machine, used: frozenset[str]
) -> tuple[str, dict[str, Any]] | None:
    """The step's name and the arguments to try now; None where nothing is left to try."""
    for name, step in REPAIRS.items():
        if name not in used:
            changed = step(arguments, error, machine)
            if changed is not None:
                return name, changed
    return None


def difference(before: Arguments, after: Arguments) -> str:
    """What a step changed, in words."""
    told = []
    for name in sorted(before.keys() | after.keys()):
        if before.get(name) != after.get(name):
            new = "left out" if name not in after else f"now {after[name]!r}"
            told.append(f"{name} {new}" + (f", was {before[name]!r}" if name in before else ""))
    return "; ".join(told)


def _object(text: str, read: Any) -> dict[str, Any] | None:
    try:
        value = read(text)
    except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
        return None
    return value if isinstance(value, dict) else None
