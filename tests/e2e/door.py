"""A client of the front door, as its users write one: submit, poll until final, look."""

from __future__ import annotations

import time
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self

import httpx

HOLD_S = 10


class Door:
    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self._client = httpx.Client(base_url=self.url, timeout=120.0, trust_env=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        self._client.close()

    def get(self, path: str, **query: str | int) -> httpx.Response:
        return self._client.get(path, params=query)

    def post(self, path: str, body: Any = None) -> httpx.Response:
        return self._client.post(path, json={} if body is None else body)

    def status(self) -> str | None:
        """The word of `GET /`; None while nobody answers."""
        try:
            reply = self._client.get("/", timeout=5.0)
        except httpx.HTTPError:
            return None
        assert reply.status_code == httpx.codes.OK, reply.text
        return str(reply.json()["status"])

    def predict(self, prompt: str | list[str], **fields: Any) -> Any:
        reply = self.post("/predict", {"prompt": prompt, **fields})
        assert reply.status_code == httpx.codes.OK, reply.text
        return reply.json()["response"]

    def submit(self, **body: Any) -> str:
        reply = self.post("/requests", body)
        assert reply.status_code == httpx.codes.ACCEPTED, reply.text
        return str(reply.json()["id"])

    def look(self, rid: str) -> dict[str, Any]:
        """The object as it is now."""
        reply = self.get(f"/requests/{rid}")
        assert reply.status_code in (httpx.codes.OK, httpx.codes.ACCEPTED), reply.text
        shown: dict[str, Any] = reply.json()
        return shown

    def final(self, rid: str, limit_s: float) -> dict[str, Any]:
        """The object once it is final: 202 until then."""
        until = time.monotonic() + limit_s
        while True:
            left_s = until - time.monotonic()
            assert left_s > 0, f"{rid} is not final after {limit_s:g} s: {self.look(rid)}"
            reply = self.get(f"/requests/{rid}", wait=max(1, min(HOLD_S, int(left_s))))
            if reply.status_code == httpx.codes.OK:
                shown: dict[str, Any] = reply.json()
                return shown
            assert reply.status_code == httpx.codes.ACCEPTED, reply.text

    def finals(self, rids: Sequence[str], limit_s: float) -> list[dict[str, Any]]:
        """The same for many, within one limit."""
        until = time.monotonic() + limit_s
        return [self.final(rid, max(1.0, until - time.monotonic())) for rid in rids]

    def workers(self) -> list[dict[str, Any]]:
        reply = self.get("/workers")
        assert reply.status_code == httpx.codes.OK, reply.text
        return [worker for worker in reply.json()["workers"] if worker["is_live"]]

    def counters(self) -> dict[str, int]:
        counters: dict[str, int] = self.get("/queue").json()["counters"]
        return counters
