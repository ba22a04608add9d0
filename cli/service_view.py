"""What the running service says of itself over HTTP, for the lines of state. Knows paths and
bodies, no process.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import httpx

TIMEOUT_S = 2.0


@dataclass(frozen=True)
class WorkerView:
    """One entry of `GET /workers`, as far as a line of state needs it."""

    id: str
    state: str
    pid: int
    model: str
    engine: str
    reason: str | None

    @property
    def serves(self) -> bool:
        return self.state in ("ready", "busy")

    def line(self) -> str:
        match self.state:
            case "ready" | "busy":
                return f"{self.state}  {self.model} {self.engine}"
            case "starting":
                return f"loading… {self.reason or ''}".rstrip()
            case "setup_failed":
                return f"failed: {self.reason or 'no reason given'}"
            case _:
                return f"{self.state} {self.reason or ''}".rstrip()


def read_workers(body: Any) -> list[WorkerView]:
    """Tolerant of what is missing: a line of state must not fail on a newer front door."""
    entries: Sequence[Any] = body.get("workers", ()) if isinstance(body, Mapping) else body
    views = []
    for entry in entries:
        # A worker's own account may lie one level down, beside what the broker adds.
        info = entry.get("info", entry)
        view = WorkerView(
            id=str(info.get("id", "")),
            state=str(info.get("state", "")).lower(),
            pid=int(info.get("pid") or 0),
            model=str(info.get("model") or ""),
            engine=str(info.get("engine") or ""),
            reason=info.get("reason") or None,
        )
        views.append(view)
    return views


class ServiceView:
    """A client of the front door on this machine."""

    def __init__(self, host: str, port: int) -> None:
        shown = "127.0.0.1" if host in ("", "0.0.0.0", "::") else host
        self.url = f"http://[{shown}]:{port}" if ":" in shown else f"http://{shown}:{port}"
        # A proxy that the environment names has no part in asking our own process.
        self._client = httpx.AsyncClient(base_url=self.url, timeout=TIMEOUT_S, trust_env=False)

    async def close(self) -> None:
        await self._client.aclose()

    async def is_alive(self) -> bool:
        try:
            return (await self._client.get("/livez")).status_code == httpx.codes.OK
        except httpx.HTTPError:
            return False

    async def broker(self) -> str | None:
        """Its line of state; None where the front door does not answer now."""
        try:
            reply = await self._client.get("/readyz")
            if reply.status_code == httpx.codes.OK:
                return "answers"
            return str(reply.json()["error"]["message"])
        except (httpx.HTTPError, ValueError, KeyError, TypeError):
            return None

    async def wants_key(self) -> bool:
        """Whether clients need one of API_KEYS."""
        try:
            return (await self._client.get("/requests/-")).status_code == httpx.codes.UNAUTHORIZED
        except httpx.HTTPError:
            return False

    async def workers(self) -> list[WorkerView] | None:
        """None where the front door does not answer now."""
        try:
            reply = await self._client.get("/workers")
            return read_workers(reply.json()) if reply.status_code == httpx.codes.OK else None
        except (httpx.HTTPError, ValueError, AttributeError, TypeError):
            return None
