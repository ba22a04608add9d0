"""The fixture of the queue's own tests: a fresh queue on the session's real server."""

from __future__ import annotations

from tests.queue.conftest import shard

__all__ = ["shard"]
