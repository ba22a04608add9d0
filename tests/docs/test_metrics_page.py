"""`docs/metrics.md` lists exactly the metrics there are, each in the table of its process."""

from __future__ import annotations

import ast
import re

import pytest

from tests.architecture.source_tree import modules
from tests.docs import pages

COUNTERS = ("Counter", "CounterMetricFamily")


def in_code(part: str) -> set[str]:
    """Names in `<part>/metrics.py`; a family of counters gets its `_total` from the library."""
    [module] = [m for m in modules(part) if m.path.name == "metrics.py"]
    counters = {
        arg.value
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id in COUNTERS
        for arg in node.args[:1]
        if isinstance(arg, ast.Constant) and isinstance(arg.value, str)
    }
    listed = {
        element.value
        for node in ast.walk(module.tree)
        if isinstance(node, ast.AnnAssign | ast.Assign) and "COUNTERS" in ast.unparse(node)[:40]
        for element in ast.walk(node)
        if isinstance(element, ast.Constant) and isinstance(element.value, str)
    }
    names = {
        node.value
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and re.fullmatch(r"sluice_\w+", node.value)
    }
    return {
        f"{name}_total" if name in counters | listed and not name.endswith("_total") else name
        for name in names
    }


@pytest.mark.parametrize(("part", "heading"), [("api", "Front door"), ("worker", "Worker")])
def test_the_page_lists_the_metrics_of(part: str, heading: str) -> None:
    section = pages.text("docs/metrics.md").partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `(sluice_\w+)` \|", section, re.MULTILINE)
    assert len(rows) == len(set(rows))
    assert set(rows) == in_code(part)
