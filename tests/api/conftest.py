"""Fixtures of the front door's tests: settings that nothing on this machine colours."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from api.settings import ApiSettings
from tests.api.answering import Answerer, answering
from tests.api.serving import Front, front_door

Load = Callable[..., ApiSettings]


@pytest.fixture
def load_settings(monkeypatch: pytest.MonkeyPatch) -> Load:
    """Settings as a process reads them: variables by name, no `.env`."""

    def load(variables: dict[str, str] | None = None, **given: Any) -> ApiSettings:
        for name in ApiSettings.model_fields:
            monkeypatch.delenv(name.upper(), raising=False)
        for name, value in (variables or {}).items():
            monkeypatch.setenv(name, value)
        return ApiSettings.load(_env_file=None, **given)

    return load


@pytest.fixture
def settings(load_settings: Load, broker_url: str, queue_name: str) -> ApiSettings:
    return load_settings({"REDIS_URL": broker_url, "QUEUE_NAME": queue_name})


@pytest.fixture
async def front(settings: ApiSettings) -> AsyncIterator[Front]:
    async with front_door(settings) as front:
        yield front


@pytest.fixture
async def worker(settings: ApiSettings) -> AsyncIterator[Answerer]:
    async with answering(settings) as answerer:
        yield answerer
