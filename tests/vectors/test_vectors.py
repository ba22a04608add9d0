"""Every recorded case of the seeds holds, by the runner that `python -m tests.vectors` is."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.vectors.runner import run_file, told
from tests.vectors.vector import read_entries

FILES = sorted((Path(__file__).parent / "data").glob("*.json"))
IN_ALL = 461
# What rules leave out, by file; every other vector passes.
SKIPPED = {"boot_open": 2}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
async def test_recorded_cases_hold(path: Path, broker_url: str) -> None:
    *lines, totals = told(await run_file(path, lambda: broker_url))
    n, skipped = len(read_entries(path)), SKIPPED.get(path.stem, 0)
    assert [line for line in lines if not line.startswith("skipped ")] == []
    assert totals == f"{n - skipped} passed, 0 failed, {skipped} skipped"


def test_no_case_is_missing_and_few_are_skipped() -> None:
    assert sum(len(read_entries(path)) for path in FILES) == IN_ALL
    assert sum(SKIPPED.values()) * 10 <= IN_ALL
    assert SKIPPED.keys() <= {path.stem for path in FILES}
