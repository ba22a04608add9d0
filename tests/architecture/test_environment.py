"""Settings are read once: only `*/settings.py` looks at the environment."""

from __future__ import annotations

import ast
from pathlib import Path

from tests.architecture.source_tree import Module, modules

READERS = ("environ", "environb", "getenv", "getenvb")
# Runs before any package is there, so it cannot have a settings class.
INSTALLER = "cli/install.py"
# Some switches of the engines exist only as variables: set here, before an engine is imported.
WRITER = "worker/environment.py"
WRITES = ("setdefault", "update")


def uses(module: Module) -> list[ast.expr]:
    """Places that name the environment, through `os.` or imported by name."""
    from_os = {
        alias.asname or alias.name
        for node in ast.walk(module.tree)
        if isinstance(node, ast.ImportFrom) and node.module == "os"
        for alias in node.names
        if alias.name in READERS
    }
    return [
        node
        for node in ast.walk(module.tree)
        if (isinstance(node, ast.Name) and node.id in from_os)
        or (isinstance(node, ast.Attribute) and node.attr in READERS and is_os(node.value))
    ]


def is_os(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id == "os"


def written(module: Module) -> set[int]:
    """Ids of the expressions that are written to: `x[…] = …`, `del`, `setdefault`, `update`."""
    targets = set()
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store | ast.Del):
            targets.add(id(node.value))
        if (
            isinstance(node, ast.Expr)
            and isinstance(node.value, ast.Call)
            and isinstance(node.value.func, ast.Attribute)
            and node.value.func.attr in (*WRITES, "pop")
        ):
            targets.add(id(node.value.func.value))
    return targets


def test_only_settings_modules_read_the_environment() -> None:
    broken = []
    for module in modules():
        path = module.path.as_posix()
        if module.path.name == "settings.py" or path == INSTALLER:
            continue
        allowed = written(module) if path == WRITER else set()
        broken += [f"{path}:{node.lineno}" for node in uses(module) if id(node) not in allowed]
    assert not broken, f"reads the environment: {', '.join(broken)}"


def test_the_check_sees_a_read_and_tells_it_from_a_write() -> None:
    source = (
        'import os\nos.environ["A"] = "1"\nos.environ.setdefault("B", "1")\nx = os.environ["C"]\n'
    )
    module = Module(Path("worker/environment.py"), ast.parse(source))
    allowed = written(module)
    assert [n.lineno for n in uses(module) if id(n) not in allowed] == [4]
