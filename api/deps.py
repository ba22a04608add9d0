"""What routes are given: the process's services, and who asks. Each can be replaced by `dependency_overrides`."""

from __future__ import annotations

import hmac
from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends, Request

from api.drain import Drain
from api.errors import InvalidApiKey
from api.intake import Intake
from api.metrics import Metrics
from api.settings import ApiSettings, is_loopback_host, key_digest
from api.system_prompt import SystemPrompts
from shared.errors import Forbidden
from shared.queue.producer import Producer

ANONYMOUS = "anonymous"


@dataclass(frozen=True)
class Services:
    """Everything a route may use; made once by `build_app`."""

    settings: ApiSettings
    public_variables: dict[str, str]
    producer: Producer
    prompts: SystemPrompts
    intake: Intake
    metrics: Metrics
    drain: Drain


async def services_of(request: Request) -> Services:
    services: Services = request.app.state.services
    return services


ServicesDep = Annotated[Services, Depends(services_of)]


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks, and what may be used to answer."""

    services: Services
    tenant: str


async def caller_of(request: Request) -> Caller:
    """One dependency for both, since each one costs on every request."""
    services = await services_of(request)
    known = services.settings.api_keys
    return Caller(services, _tenant(request, known) if known else ANONYMOUS)


CallerDep = Annotated[Caller, Depends(caller_of)]


def _tenant(request: Request, known: tuple[str, ...]) -> str:
    """Each key is a tenant of its own, so that one holder cannot read another's answers."""
    digest = key_digest(_bearer(request))
    # Every key is compared, so that the time taken tells nothing.
    matches = [hmac.compare_digest(digest, key) for key in known]
    if not any(matches):
        raise InvalidApiKey("send a key of this service as Authorization: Bearer")
    return f"key-{digest[:16]}"


async def admin(request: Request, services: ServicesDep) -> str:
    """Who may change the service for everybody; the name under which it is noted.

    Without ADMIN_TOKEN only somebody at this machine: a proxy or a page of a browser that was
    pointed here by name gives itself away by its headers.
    """
    settings = services.settings
    if settings.admin_token:
        given, token = _bearer(request).encode(), settings.admin_token.encode()
        if not hmac.compare_digest(given, token):
            raise InvalidApiKey("send ADMIN_TOKEN as Authorization: Bearer")
        return "admin"
    headers = request.headers
    is_proxied = any(name == "forwarded" or name.startswith("x-forwarded") for name in headers)
    host = headers.get("host", "").rpartition("@")[2]
    name = host.rpartition("]")[0].lstrip("[") if host.startswith("[") else host.partition(":")[0]
    client = request.client.host if request.client else ""
    if not (
        settings.is_loopback
        and is_loopback_host(client)
        and is_loopback_host(name)
        and not is_proxied
    ):
        raise Forbidden("set ADMIN_TOKEN on the server and send it as Authorization: Bearer")
    return "loopback"


AdminDep = Annotated[str, Depends(admin)]


def _bearer(request: Request) -> str:
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""
