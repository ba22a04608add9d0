"""Puts the front door together: services, layers, routes, error handlers. No rule of its own."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, Request
from starlette.responses import Response

from api.deps import Services
from api.drain import Drain
from api.edge import Edge, exchange_of
from api.errors import RETRY_CAP_S, RULES, code_of, error_response
from api.intake import Intake
from api.metrics import Metrics
from api.preferences import HEADERS
from api.routes import dead_letters, ops, predict, requests, system_prompt
from api.schemas import Malformed
from api.settings import VERSION, ApiSettings, public_variables
from api.system_prompt import SystemPrompts
from shared import garbage
from shared.errors import Busy, Ended, QueueFull, SluiceError
from shared.queue.connection import Connection
from shared.queue.producer import Producer

# These tell bad input as FastAPI does, because the first seed did.
DETAIL_PATHS = frozenset({"/predict", "/system_prompt"})


def build_app(settings: ApiSettings) -> FastAPI:
    """The whole front door. Nothing connects before the lifespan starts; it needs no broker to start."""
    connection = Connection.open(settings)
    producer = Producer(connection, settings)
    metrics = Metrics(producer, RULES)
    prompts = SystemPrompts(producer, settings.built_in_system_prompt)
    drain = Drain(settings.api_drain_s)
    intake = Intake(settings, producer, prompts, metrics, drain)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        await producer.start()
        garbage.settle()
        try:
            yield
        finally:
            await producer.close()
            await connection.close()

    app = FastAPI(title="Sluice", version=VERSION, lifespan=lifespan)
    app.state.services = Services(
        settings, public_variables(), producer, prompts, intake, metrics, drain
    )
    # Routes are matched in order, so the busiest come first.
    for routes in (predict, requests, system_prompt, dead_letters, ops):
        app.include_router(routes.router)
    app.add_exception_handler(SluiceError, _told)
    app.add_middleware(Edge, metrics=metrics, max_body_bytes=settings.max_body_bytes)
    return app


async def _told(request: Request, error: Exception) -> Response:
    """An error that has a code: its status, the one body, and headers that say whether to come again."""
    assert isinstance(error, SluiceError)
    exchange = exchange_of(request)
    exchange.code = code_of(error)
    exchange.is_rejected = not isinstance(error, Ended) and error.stage == "admission"
    retry_s = error.retry_after_s if isinstance(error, Busy) else None
    if isinstance(error, QueueFull) and retry_s is None:
        retry_s = _seconds_until_room(request)
    detail = _detail(error) if request.scope["path"] in DETAIL_PATHS else None
    return error_response(error, exchange.error_id, retry_after_s=retry_s, detail=detail)


def _detail(error: SluiceError) -> list[dict[str, Any]] | None:
    """FastAPI's list of what is wrong where, for every 422 alike."""
    if isinstance(error, Malformed):
        return error.detail
    code = code_of(error)
    if RULES.get(code) is None or RULES[code].status != 422:
        return None
    param = error.param or "prompt"
    name = "max_new_tokens" if param == "max_tokens" else param
    loc = ("header", name) if name in HEADERS else ("body", name)
    kind = "value_error" if code == "invalid_request" else code
    return [{"type": kind, "loc": loc, "msg": error.message, "input": None}]


def _seconds_until_room(request: Request) -> float:
    """By the measured drain rate: until a tenth of what is queued has gone."""
    services: Services = request.app.state.services
    stats = services.producer.known_stats
    if stats is None or stats.drain_rate_per_s <= 0:
        return 10.0
    return min(RETRY_CAP_S, max(1.0, 0.1 * stats.queued / stats.drain_rate_per_s))
