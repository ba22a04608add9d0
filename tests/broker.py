"""The real broker for tests: one Valkey server a session, a queue of its own for each test.

Imported by `conftest.py` as a pytest plugin; a test that ends a server starts its own.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest

from tests.valkey_server import Server


@pytest.fixture(scope="session")
def broker() -> Iterator[Server]:
    server = Server().start()
    yield server
    server.stop()
    server.clean()


@pytest.fixture(scope="session")
def broker_url(broker: Server) -> str:
    return broker.url


@pytest.fixture
def queue_name() -> str:
    return f"t-{uuid.uuid4().hex[:16]}"
