"""The checkout as data: its files, its modules, what they import and where.

Nothing is imported to find out.
"""

from __future__ import annotations

import ast
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PARTS = ("api", "worker", "shared", "cli", "bench")


@dataclass(frozen=True)
class Import:
    """One import; `name` is `a.b` for `import a.b` and for `from a import b`."""

    name: str
    line: int
    is_in_function: bool
    is_for_types: bool

    @property
    def top(self) -> str:
        return self.name.partition(".")[0]

    def is_of(self, package: str) -> bool:
        return self.name == package or self.name.startswith(package + ".")


@dataclass(frozen=True)
class Module:
    """A Python file; `path` is relative to the root."""

    path: Path
    tree: ast.Module

    @property
    def part(self) -> str:
        return self.path.parts[0]

    @property
    def name(self) -> str:
        words = self.path.with_suffix("").parts
        return ".".join(words[:-1] if words[-1] == "__init__" else words)

    def imports(self) -> list[Import]:
        finder = _Imports(self)
        finder.visit(self.tree)
        return finder.found

    def __str__(self) -> str:
        return str(self.path)


class _Imports(ast.NodeVisitor):
    def __init__(self, module: Module) -> None:
        self.found: list[Import] = []
        self._module = module
        self._functions = 0
        self._types = 0

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            self._add(alias.name, node.lineno)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        base = node.module or ""
        if node.level:
            package = self._module.path.parent.parts
            base = ".".join((*package[: len(package) - node.level + 1], *filter(None, [base])))
        for alias in node.names:
            self._add(f"{base}.{alias.name}", node.lineno)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        self._visit_function(node)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> None:
        self._visit_function(node)

    def visit_If(self, node: ast.If) -> None:
        is_for_types = ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING")
        self._types += is_for_types
        for child in node.body:
            self.visit(child)
        self._types -= is_for_types
        for child in node.orelse:
            self.visit(child)

    def _visit_function(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        self._functions += 1
        self.generic_visit(node)
        self._functions -= 1

    def _add(self, name: str, line: int) -> None:
        self.found.append(Import(name, line, self._functions > 0, self._types > 0))


@cache
def modules(*parts: str) -> tuple[Module, ...]:
    """Every module of the named folders (all parts of the service if none is named)."""
    return tuple(
        Module(path.relative_to(ROOT), ast.parse(path.read_text("utf-8")))
        for part in parts or PARTS
        for path in sorted((ROOT / part).rglob("*.py"))
    )


def imports_of(*parts: str) -> Iterator[tuple[Module, Import]]:
    """Every import of the named parts, with its module."""
    for module in modules(*parts):
        for found in module.imports():
            yield module, found


@cache
def files() -> frozenset[str]:
    """Paths of the project's files: what git has or would take, so not what `.gitignore` names."""
    git = shutil.which("git")
    assert git is not None, "git tells what belongs to the project"
    command = [git, "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, check=True).stdout.decode()
    return frozenset(path for path in listed.split("\0") if path and (ROOT / path).is_file())
