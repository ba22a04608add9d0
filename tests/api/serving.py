"""A front door under test: in this process over ASGI, or on a real port where connections count."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass

import httpx
from fastapi import FastAPI

from api.__main__ import server_for
from api.app import build_app
from api.deps import Services
from api.settings import ApiSettings


@dataclass
class Front:
    app: FastAPI
    client: httpx.AsyncClient

    @property
    def services(self) -> Services:
        services: Services = self.app.state.services
        return services


@contextlib.asynccontextmanager
async def front_door(settings: ApiSettings) -> AsyncIterator[Front]:
    """Over ASGI: no socket, everything else is real."""
    app = build_app(settings)
    async with app.router.lifespan_context(app):
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        base = "http://127.0.0.1:8000"
        async with httpx.AsyncClient(transport=transport, base_url=base, timeout=30) as client:
            yield Front(app, client)


@contextlib.asynccontextmanager
async def served(settings: ApiSettings) -> AsyncIterator[Front]:
    """On a free port of loopback, by the server that `python -m api` runs."""
    app = build_app(settings)
    server = server_for(app, settings.model_copy(update={"port": 0}))
    task = asyncio.create_task(server._serve())
    await eventually(lambda: server.started)
    port = server.servers[0].sockets[0].getsockname()[1]
    try:
        base = f"http://127.0.0.1:{port}"
        async with httpx.AsyncClient(base_url=base, timeout=30, trust_env=False) as client:
            yield Front(app, client)
    finally:
        server.should_exit = True
        await task


async def eventually(
    holds: Callable[[], bool | Awaitable[bool]], within_s: float = 10.0, every_s: float = 0.02
) -> None:
    """Wait for a condition; fails the test where it does not come."""
    until = time.monotonic() + within_s
    while True:
        value = holds()
        if isinstance(value, bool) and value:
            return
        if not isinstance(value, bool) and await value:
            return
        assert time.monotonic() < until, f"still not so after {within_s} s: {holds}"
        await asyncio.sleep(every_s)
