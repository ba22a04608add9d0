"""Who may import what: imports point one way, and heavy libraries load where they are needed."""

from __future__ import annotations

import pytest

from tests.architecture.source_tree import Import, Module, imports_of, modules

OUR_PARTS = ("api", "worker", "shared", "cli", "bench", "tests")
MAY_USE = {
    "shared": {"shared"},
    "api": {"api", "shared"},
    "worker": {"worker", "shared"},
    "cli": {"cli", "shared"},
    "bench": {"bench", "shared"},
}
# Libraries that only some files may touch. A folder ends with a slash.
OWNERS = {
    "redis": ("shared/queue/",),
    "hiredis": ("shared/queue/",),
    "fastapi": ("api/",),
    "starlette": ("api/",),
    "uvicorn": ("api/",),
    "prometheus_client": ("api/metrics.py", "worker/metrics.py"),
    "typer": ("cli/",),
}
# Loaded inside functions alone: they take seconds and memory, and not every image has them.
ENGINES = ("worker/engines/", "worker/prompt.py", "worker/model.py")
HEAVY = {
    "vllm": ENGINES,
    "torch": ENGINES,
    "transformers": ENGINES,
    "gguf": ENGINES,
    "accelerate": ENGINES,
    "huggingface_hub": ("worker/hubs.py",),
    "modelscope": ("worker/hubs.py",),
}
NEVER = ("pickle", "cloudpickle", "dill", "marshal", "shelve")


def is_owner(module: Module, owners: tuple[str, ...]) -> bool:
    path = module.path.as_posix()
    return any(path == own or (own.endswith("/") and path.startswith(own)) for own in owners)


def place(module: Module, found: Import) -> str:
    return f"{module}:{found.line} imports {found.name}"


@pytest.mark.parametrize("part", MAY_USE)
def test_a_part_imports_only_the_parts_below_it(part: str) -> None:
    broken = [
        place(module, found)
        for module, found in imports_of(part)
        if found.top in OUR_PARTS and found.top not in MAY_USE[part]
    ]
    assert not broken, "\n".join(broken)
    assert modules(part), f"{part}/ is there"


@pytest.mark.parametrize(
    ("part", "half"),
    [("api", "shared.queue.consumer"), ("worker", "shared.queue.producer")],
)
def test_each_side_uses_its_own_half_of_the_queue(part: str, half: str) -> None:
    broken = [place(m, found) for m, found in imports_of(part) if found.is_of(half)]
    assert not broken, "\n".join(broken)


@pytest.mark.parametrize("library", OWNERS)
def test_a_library_is_imported_by_its_owners_alone(library: str) -> None:
    # Benchmarks look at peers and at the bare broker, so they may use what they measure.
    parts = ("api", "worker", "shared", "cli")
    broken = [
        place(module, found)
        for module, found in imports_of(*parts)
        if found.top == library and not is_owner(module, OWNERS[library])
    ]
    assert not broken, "\n".join(broken)


@pytest.mark.parametrize("library", HEAVY)
def test_heavy_libraries_are_loaded_inside_functions_of_few_modules(library: str) -> None:
    broken = [
        place(module, found)
        for module, found in imports_of()
        if found.top == library
        and not found.is_for_types
        and not (found.is_in_function and is_owner(module, HEAVY[library]))
    ]
    assert not broken, "\n".join(broken)


def test_nothing_unpickles() -> None:
    broken = [place(m, found) for m, found in imports_of() if found.top in NEVER]
    assert not broken, "\n".join(broken)


def test_package_roots_are_empty() -> None:
    """An import of one module must not bring others along. `worker.engines` is the registry."""
    roots = [m for m in modules() if m.path.name == "__init__.py"]
    filled = [str(m) for m in roots if m.tree.body and m.name != "worker.engines"]
    assert roots
    assert not filled
