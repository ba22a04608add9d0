"""Whole services for the end-to-end tests. An engine is slow to start, so one stack serves all that can share it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.door import Door
from tests.e2e.places import model_folder
from tests.e2e.stack import Stack


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return model_folder(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="package")
def stack(tmp_path_factory: pytest.TempPathFactory, model: Path) -> Iterator[Stack]:
    """Broker, front door and one vLLM worker; a test may add another and must end it."""
    stack = Stack(tmp_path_factory.mktemp("stack"), model)
    try:
        stack.start()
        stack.add_worker()
        yield stack
    finally:
        stack.stop()


@pytest.fixture
def door(stack: Stack) -> Door:
    return stack.door
