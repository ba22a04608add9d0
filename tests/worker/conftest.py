"""A service of its own for each test."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.worker.serving import Service


@pytest.fixture
async def service(broker_url: str, queue_name: str) -> AsyncIterator[Service]:
    service = Service(broker_url, queue_name, lease_s=2)
    await service.producer.start()
    yield service
    await service.close()
