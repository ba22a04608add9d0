"""Puts the scripts of `lua/` together: what the server is given for one run, and for several in a command.

A script's header is the single source: `KEYS` names its fixed keys (before the bar), `USES` the shared pieces put in
front of it, `FLAGS` what a full broker refuses. All that a script's text defines is made anew for every command, which
is much of what a short one costs: so constants stand in it as numbers, and what it does not use is left out.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from functools import cache
from importlib.resources import files

import msgspec

NAMES = (
    "submit",
    "reserve",
    "submit_many",
    "claim",
    "beat",
    "emit",
    "finish",
    "end",
    "end_missing",
    "nack",
    "reap",
    "sweep",
    "promote",
    "tick",
    "peek",
    "attach",
    "notify",
    "settle",
    "stats",
    "prune",
    "set_prompt",
    "drop",
    "list_letters",
    "requeue_letter",
    "drop_letter",
)

# Whose runs may share a command. What one of them changes the next must find: so these read records, room and virtual
# times by the pieces that keep them, and nothing else that a run before may have put off.
MERGED = frozenset({"submit", "finish"})

# A script's own text is a function of its keys and arguments, whether it is run once or several times in a command.
# What its pieces have put off until the end of the command is done then, also where a run has failed.
_RUN = """
local function run(KEYS, ARGV)
%s
end

local function conclude()
  for i = 1, #at_end do at_end[i]() end
end

-- What a run says, now that all is written. What a failed command throws is a table or a string, by the server's
-- release. Of several, who is told OK must hear of a write that failed at the end.
local function told(is_done, reply)
  if not is_done then return {err = type(reply) == 'table' and reply.err or 'ERR ' .. tostring(reply)} end
  return failed and reply[1] == 'OK' and failed or reply
end
"""
_ONCE = """
local is_done, reply = pcall(run, KEYS, ARGV)
conclude()
return failed or told(is_done, reply)
"""
_SEVERAL = """
local done, replies, k, a = {}, {}, N_FIXED, 3
for i = 1, tonumber(ARGV[2]) do
  local n_keys, n_args = tonumber(ARGV[a]), tonumber(ARGV[a + 1])
  done[i], replies[i] = pcall(run, {unpack(KEYS, k + 1, k + n_keys)}, {ARGV[1], unpack(ARGV, a + 2, a + 1 + n_args)})
  k, a = k + n_keys, a + 2 + n_args
end
conclude()
for i = 1, #replies do replies[i] = told(done[i], replies[i]) end
return replies
"""


class Script(msgspec.Struct, frozen=True):
    """`source` is what the server runs. `several`: what it is given for several runs in one command."""

    name: str
    source: str
    sha: str
    fixed: tuple[str, ...]
    several: Script | None = None

    @classmethod
    def of(
        cls, name: str, fixed: tuple[str, ...], source: str, several: Script | None = None
    ) -> Script:
        return cls(name, source, hashlib.sha1(source.encode()).hexdigest(), fixed, several)


@cache
def load(name: str) -> Script:
    text = _read(name)
    header = _header(text)
    fixed = tuple(header["KEYS"].partition("|")[0].split())
    flags = [flag for flag in header["FLAGS"].split() if flag != "deny-oom"]
    head = "#!lua" + (f" flags={','.join(flags)}" if flags else "")
    pieces = "\n".join(map(_read, header["USES"].split()))
    run = _RUN.replace("%s", text)

    def source(n_before: int, ending: str) -> str:
        """`n_before`: of the keys that a run is given, those that are fixed."""
        body = _used(pieces, run + ending) + run + ending
        return f"{head}\nlocal FIXED = KEYS\n{placed(body, fixed, n_before)}"

    several = None
    if name in MERGED:
        ending = _SEVERAL.replace("N_FIXED", str(len(fixed)))
        several = Script.of(f"{name}, several", fixed, source(0, ending))
    return Script.of(name, fixed, source(len(fixed), _ONCE), several)


def placed(text: str, fixed: Sequence[str], n_before: int) -> str:
    """Numbers and places for names: `R_ST` a field of the record, `K_live` a fixed key, `NK` how many of those a run's
    own keys come after. Raises KeyError for a field that is none. A key that is not declared is nil: a script may use a
    part of a piece.
    """
    keys = {key.replace(":", "_"): f"FIXED[{i}]" for i, key in enumerate(fixed, 1)}
    text = re.sub(r"\bR_(\w+)", lambda found: str(_fields()[found[1]]), text)
    text = re.sub(r"\bK_(\w+)", lambda found: keys.get(found[1], "nil"), text)
    return re.sub(r"\bNK\b", str(n_before), text)


def _used(pieces: str, rest: str) -> str:
    """The pieces without those functions that nothing names but they themselves."""
    while True:
        unused = [
            part
            for part in _FUNCTION.finditer(pieces)
            if not re.search(
                rf"\b{part[1]}\b", pieces[: part.start()] + pieces[part.end() :] + rest
            )
        ]
        if not unused:
            return pieces
        for part in reversed(unused):
            pieces = pieces[: part.start()] + pieces[part.end() :]


# With the comment above it: on one line, or to an `end` at the line's beginning.
_FUNCTION = re.compile(
    r"(?:^--.*\n)*^local function (\w+)\((?:.* end\n|.*\n(?:(?!end\n).*\n)*end\n)", re.MULTILINE
)


@cache
def _read(name: str) -> str:
    return files("shared.queue").joinpath(f"lua/{name}.lua").read_text(encoding="utf-8")


@cache
def _fields() -> dict[str, int]:
    return {name: i for i, name in enumerate(_header(_read("prelude"))["FIELDS"].split(), 1)}


def _header(text: str) -> dict[str, str]:
    """Its lines `-- NAME: …`."""
    return dict(re.findall(r"^-- ([A-Z]+): ?(.*)$", text, re.MULTILINE))
