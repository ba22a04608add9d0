from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.valkey_server import Server


@pytest.fixture(scope="module")
def socket_path() -> Iterator[str]:
    """A server of its own: every run begins by wiping it."""
    server = Server().start()
    yield str(server.socket)
    server.stop()
    server.clean()
