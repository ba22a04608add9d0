"""The repairs by themselves: two changes of arguments, and the length that a failure's words name."""

from __future__ import annotations

import builtins
import re
from typing import Any

from tests.vectors.comparison import Difference, Differences, exact
from tests.vectors.surroundings import Surroundings
from tests.vectors.vector import Vector
from worker.repairs import estimated_max_len, fix_compilation_config, fix_load_format

FIXES = {"fix_compilation_config": fix_compilation_config, "fix_load_format": fix_load_format}
# The one chain that no list can write down.
CYCLE = re.compile(
    r"two (?P<kind>\w+)s '(?P<a>.*)' and '(?P<b>.*)', each the other's (?P<link>\w+)"
)


def fix(vector: Vector, around: Surroundings) -> Differences:
    given = vector.input["engine_kwargs"]
    changed = FIXES[vector.function](given, vector.input["error"])
    found = {
        "changed": changed is not None,
        "engine_kwargs": given if changed is None else changed,
    }
    return exact(vector.wanted, found)


def parse_estimated_max_len(vector: Vector, around: Surroundings) -> Differences:
    chain = vector.input["chain"]
    error = _cycle(chain) if isinstance(chain, str) else _chained(chain)
    if error is None:
        return [Difference("chain", "words that this runner knows", chain)]
    return exact(vector.wanted, estimated_max_len(error))


def _cycle(words: str) -> BaseException | None:
    match = CYCLE.fullmatch(words)
    if match is None:
        return None
    one, other = (_error(match["kind"], match[name]) for name in "ab")
    _link(one, match["link"], other)
    _link(other, match["link"], one)
    return one


def _chained(chain: list[dict[str, Any]]) -> BaseException:
    errors = [_error(each["type"], each["message"]) for each in chain]
    for each, error, following in zip(chain, errors, errors[1:], strict=False):
        _link(error, each["link_to_next"], following)
    return errors[0]


def _error(kind: str, message: str) -> BaseException:
    """Libraries have exceptions of their own; what they are is not looked at."""
    known = getattr(builtins, kind, None)
    made = known if isinstance(known, type) and issubclass(known, BaseException) else None
    error: BaseException = (made or type(kind, (Exception,), {}))(message)
    return error


def _link(error: BaseException, link: str | None, to: BaseException) -> None:
    """`cause` is `raise … from`, `context` an error while another was handled, also where that is suppressed."""
    words = link or ""
    if "cause" in words:
        error.__cause__ = to
    elif "context" in words:
        error.__context__ = to
        error.__suppress_context__ = "suppress" in words
