"""A service of its own for a test, and an environment without settings."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.worker.serving import Service
from worker.settings import EngineSettings


@pytest.fixture
async def service(broker_url: str, queue_name: str) -> AsyncIterator[Service]:
    service = Service(broker_url, queue_name, lease_s=2)
    await service.producer.start()
    yield service
    await service.close()


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Without settings from outside, and as it was afterwards."""
    monkeypatch.chdir(tmp_path)
    before = dict(os.environ)
    for name in [name for name in before if name.lower() in EngineSettings.model_fields]:
        monkeypatch.delenv(name)
    yield
    os.environ.clear()
    os.environ.update(before)
