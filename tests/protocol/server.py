"""A real server for who runs the checks without pytest."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import redis

from tests.valkey_server import Server


@contextmanager
def client_of_own_server() -> Iterator[Any]:
    server = Server().start()
    client = redis.Redis.from_url(server.url)
    try:
        yield client
    finally:
        client.close()
        server.stop()
        server.clean()
