"""The reference of the queue's scripts in `docs/protocol.md`, made from their headers.

`python -m tests.docs.script_reference` writes it anew after a header has changed.
"""

from __future__ import annotations

from pathlib import Path

from shared.queue.loader import NAMES
from tests.architecture.source_tree import ROOT

LUA = ROOT / "shared" / "queue" / "lua"
PAGE = ROOT / "docs" / "protocol.md"
FIELDS = ("KEYS", "ARGV", "Replies", "Moves", "FLAGS", "USES")
BEGIN = "<!-- from the headers of shared/queue/lua: python -m tests.docs.script_reference -->\n"
END = "<!-- end of the part from the headers -->"


def header(path: Path) -> dict[str, str]:
    """The comment on top as field to text; the first line is `name: what it does`."""
    fields: dict[str, str] = {}
    current = ""
    for line in path.read_text("utf-8").splitlines():
        if not line.startswith("--"):
            break
        text = line.removeprefix("--").strip()
        name, colon, rest = text.partition(":")
        if colon and (name in FIELDS or not fields):
            current, fields[name] = name, rest.strip()
        elif current:
            fields[current] += " " + text
    return fields


def code(text: str) -> str:
    return text if "`" in text else f"`{text}`"


def section(name: str) -> str:
    fields = header(LUA / f"{name}.lua")
    what = fields[name]
    fixed, _, more = (part.strip() for part in fields["KEYS"].partition("|"))
    full = " Refused while the broker's memory is full." if "deny" in fields["FLAGS"] else ""
    return "\n".join(
        (
            f"### {name}\n",
            f"{what[0].upper()}{what[1:]}{full}\n",
            f"- Keys: `{fixed}`" + (f"; then {code(more)}" if more else ""),
            f"- Arguments: {code(fields['ARGV'])}",
            f"- Replies: {code(fields['Replies'])}",
            f"- Moves: {fields['Moves']}",
        )
    )


def reference() -> str:
    return "\n" + "\n\n".join(section(name) for name in NAMES) + "\n\n"


def main() -> None:
    before, begin, rest = PAGE.read_text("utf-8").partition(BEGIN)
    _, end, after = rest.partition(END)
    assert begin, "the page has lost its first mark"
    assert end, "the page has lost its last mark"
    PAGE.write_text(before + begin + reference() + end + after, "utf-8")


if __name__ == "__main__":
    main()
