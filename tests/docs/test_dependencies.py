"""`docs/dependencies.md` names every package that the project asks for, in its set, with a reason."""

from __future__ import annotations

import re

from tests.architecture.source_tree import ROOT


def asked_for() -> set[tuple[str, str]]:
    """Package and set, from the `.in` files."""
    found = set()
    for path in (ROOT / "requirements").glob("*.in"):
        for line in path.read_text("utf-8").splitlines():
            if (name := re.match(r"[a-z][a-z0-9-]*", line)) is not None:
                found.add((name.group(), path.stem))
    return found


def described() -> dict[str, tuple[set[str], str]]:
    page = (ROOT / "docs" / "dependencies.md").read_text("utf-8")
    rows = re.findall(r"^\| `([\w-]+)` \| ([\w, -]+) \| (.+) \|$", page, re.MULTILINE)
    assert len({name for name, _, _ in rows}) == len(rows), "a package has two rows"
    return {name: (set(sets.split(", ")), why) for name, sets, why in rows}


def test_every_package_has_a_row_with_its_sets() -> None:
    rows = {(name, one) for name, (sets, _) in described().items() for one in sets}
    assert rows == asked_for()


def test_every_row_says_why() -> None:
    assert [name for name, (_, why) in described().items() if len(why) < 8] == []


def test_every_package_is_pinned_in_the_lock_of_its_set() -> None:
    locks = {path.stem: path.read_text("utf-8") for path in (ROOT / "requirements").glob("*.txt")}
    # `shared` and `worker` are parts of other sets and have no lock of their own.
    missing = [
        f"{name} in {one}.txt"
        for name, one in asked_for()
        if one in locks
        and not re.search(rf"^{re.escape(name)}(\[\w+\])?==", locks[one], re.MULTILINE)
    ]
    assert not missing
