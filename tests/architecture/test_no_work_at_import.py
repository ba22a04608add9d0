"""Importing a module does nothing: no thread, no heavy library, no state that changes later."""

from __future__ import annotations

import ast
import json
import subprocess
import sys

from tests.architecture.source_tree import ROOT, Module, modules

HEAVY = ("vllm", "torch", "transformers", "modelscope", "huggingface_hub")
PROBE = """
import importlib, json, sys, threading
failed = []
for name in json.load(sys.stdin):
    try:
        importlib.import_module(name)
    except Exception as error:
        failed.append(f"{name}: {error!r}")
print(json.dumps({
    "failed": failed,
    "threads": [t.name for t in threading.enumerate() if t is not threading.main_thread()],
    "loaded": sorted(set(sys.argv[1:]) & set(sys.modules)),
}))
"""


def statements(module: Module) -> list[ast.stmt]:
    """Statements at the top that do more than define: loops, calls for their effect, `with`."""
    found: list[ast.stmt] = []
    for node in module.tree.body:
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            continue  # a docstring, or the description of a name
        if isinstance(node, ast.If) and ast.unparse(node.test) in (
            "TYPE_CHECKING",
            "__name__ == '__main__'",
        ):
            continue
        defines = (
            ast.Import | ast.ImportFrom | ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
        )
        if isinstance(node, defines | ast.Assign | ast.AnnAssign):
            continue
        found.append(node)
    return found


def test_the_top_level_only_defines() -> None:
    broken = [f"{m}:{node.lineno}" for m in modules() for node in statements(m)]
    assert not broken, f"work at import: {', '.join(broken)}"


def test_nothing_changes_a_global() -> None:
    broken = [
        f"{module}:{node.lineno}"
        for module in modules()
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Global)
    ]
    assert not broken, f"`global`: {', '.join(broken)}"


def test_importing_everything_starts_nothing_and_loads_no_engine() -> None:
    names = [m.name for m in modules() if m.path.name != "__init__.py"]
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", PROBE, *HEAVY],
        input=json.dumps(names),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    assert seen["failed"] == []
    assert seen["threads"] == []
    assert seen["loaded"] == []
