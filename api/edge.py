"""The outermost layer, plain ASGI: request ids, the body limit, log context, timing, faults of ours.

It also sees chunked bodies that tell no length. Knows no route; routes find their `Exchange` in the scope.
"""

from __future__ import annotations

import logging
import re
import secrets
import time

from starlette.requests import ClientDisconnect, Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.errors import error_object, error_response
from api.metrics import Metrics
from api.responses import JsonResponse
from shared.errors import PayloadTooLarge
from shared.log import request_context

log = logging.getLogger(__name__)
_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,128}")
# Asked for every few seconds by machines: they would drown what users see.
NOT_MEASURED = frozenset(
    {"/", "/metrics", "/health", "/livez", "/readyz", "/version", "/workers", "/queue", "/info"}
)


class Exchange:
    """What the layers tell each other about one HTTP request.

    `correlation_id` is the client's own `X-Request-Id`, or made here; `queue_id` the request's in the
    queue, once there is one. The client is shown its own, else the queue's.
    """

    __slots__ = ("code", "correlation_id", "is_rejected", "priority", "queue_id", "was_given")

    def __init__(self, given: str | None) -> None:
        self.was_given = given is not None
        self.correlation_id = given or secrets.token_hex(8)
        self.queue_id: str | None = None
        self.priority = "standard"
        self.code = ""
        self.is_rejected = False

    @property
    def shown_id(self) -> str:
        return self.correlation_id if self.was_given else self.error_id

    @property
    def error_id(self) -> str:
        """What an error names: where there is one, the id by which its request can be looked up."""
        return self.queue_id or self.correlation_id


def exchange_of(request: Request) -> Exchange:
    exchange: Exchange = request.scope["exchange"]
    return exchange


class Edge:
    def __init__(self, app: ASGIApp, *, metrics: Metrics, max_body_bytes: int) -> None:
        self._app = app
        self._metrics = metrics
        self._max_bytes = max_body_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began = time.perf_counter()
        length: int | None = None
        given: str | None = None
        for name, value in scope["headers"]:
            if name == b"content-length":
                length = int(value) if value.isdigit() else None
            elif name == b"x-request-id":
                text = value.decode("latin-1")
                given = text if _REQUEST_ID.fullmatch(text) else None
        exchange = scope["exchange"] = Exchange(given)
        status = 0

        async def send_out(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                shown = exchange.shown_id.encode("latin-1")
                message["headers"] = [*message["headers"], (b"x-request-id", shown)]
            await send(message)

        with request_context(exchange.correlation_id):
            try:
                if length is not None and length > self._max_bytes:
                    exchange.code, exchange.is_rejected = PayloadTooLarge.code, True
                    response = error_response(self._too_large(), exchange.error_id)
                    await response(scope, receive, send_out)
                else:
                    inlet = receive if length is not None else self._limited(receive)
                    await self._app(scope, inlet, send_out)
            except ClientDisconnect:
                # In the middle of its body: nothing was asked, and nobody reads an answer.
                exchange.code = "client_gone"
            except Exception:
                log.exception("unexpected error in %s %s", scope["method"], _route(scope))
                exchange.code = "internal_error"
                if status:
                    raise  # the answer has begun: only closing the connection can tell
                await self._fault(exchange)(scope, receive, send_out)
            finally:
                self._measure(scope, exchange, status, time.perf_counter() - began)

    def _limited(self, receive: Receive) -> Receive:
        """For a body that tells no length: it is counted as it comes."""
        left = self._max_bytes

        async def counted() -> Message:
            nonlocal left
            message = await receive()
            if message["type"] == "http.request":
                left -= len(message.get("body", b""))
                if left < 0:
                    raise self._too_large()
            return message

        return counted

    def _fault(self, exchange: Exchange) -> JsonResponse:
        """A fault of ours. Its text stays in the log, under the id that the caller is told."""
        message = "an unexpected error; it has been logged under this id"
        shown = error_object("internal_error", message, request_id=exchange.error_id)
        return JsonResponse({"error": shown}, 500, headers={"x-should-retry": "false"})

    def _too_large(self) -> PayloadTooLarge:
        limit = f"{self._max_bytes} bytes (MAX_BODY_BYTES)"
        return PayloadTooLarge(f"body: must be at most {limit}", param="body")

    def _measure(self, scope: Scope, exchange: Exchange, status: int, seconds: float) -> None:
        if exchange.is_rejected:
            self._metrics.rejected(exchange.code)
        route = _route(scope)
        if route not in NOT_MEASURED:
            outcome = _outcome(exchange, status)
            self._metrics.answered(route, exchange.priority, outcome, exchange.code, seconds)


def _route(scope: Scope) -> str:
    """The route's template. The path is the client's: of its ids a label would have no bounds, of its line
    breaks a log no lines.
    """
    return getattr(scope.get("route"), "path", None) or "unknown"


def _outcome(exchange: Exchange, status: int) -> str:
    if exchange.is_rejected:
        return "rejected"
    if exchange.code in ("cancelled", "client_gone"):
        return "cancelled"
    if status >= 400 or status == 0:
        return "error"
    return "accepted" if status == 202 else "finished"
