"""How a client asks, and how what it is told goes into the history: one call a method, each reply one look.

A lost connection or a refusal is a reply too: `None` says that nothing was learnt. Knows no schedule.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import httpx

from tests.chaos.history import CANCELLED, ERROR, EXPIRED, FINISHED, UNKNOWN, History, Look
from tests.chaos.stack import QUEUE, TENANTS

ID = re.compile(rf"{QUEUE}\.\d+-[a-z0-9]+(\.\d+)?")
# Longer than any wait of the service with a pause of the front door on top.
REPLY_LIMIT_S = 20.0
# The service could not say more: its broker is away or empty, it is stopping, or was stopped meanwhile.
UNAVAILABLE = ("broker_unavailable", "broker_lost", "draining")
# Ends of a request as a waiting caller is told them. Whoever is let go (wait_timeout) is told no end.
ENDS = {
    "cancelled": CANCELLED,
    "client_gone": CANCELLED,
    "attempts_exhausted": ERROR,
    "expired": ERROR,
    "deadline_exceeded": ERROR,
    "engine_error": ERROR,
    "payload_lost": ERROR,
    "bad_record": ERROR,
    "submit_incomplete": ERROR,
    "dependency_failed": ERROR,
}


@dataclass(frozen=True, slots=True)
class Reply:
    began: float
    ended: float
    by: str
    call: str
    status: int
    body: Any
    rid: str | None  # the request's id in the queue, where the reply names one

    @property
    def code(self) -> str:
        error = self.body.get("error") if isinstance(self.body, dict) else None
        return str(error.get("code", "")) if isinstance(error, dict) else ""

    def look(
        self,
        state: str = "",
        code: str | None = None,
        text: str | None = None,
        final_at: float | None = None,
    ) -> Look:
        code = self.code if code is None else code
        heard = (self.began, self.ended, self.by, self.call, self.status)
        return Look(*heard, state, code, text, final_at)


class Asker:
    """One client program with a connection pool of its own to each front door."""

    def __init__(self, urls: Sequence[str], history: History, now: Callable[[], float]) -> None:
        self._history = history
        self._now = now
        self._began_at = time.time() - now()
        self._doors = [
            httpx.AsyncClient(
                base_url=url,
                timeout=httpx.Timeout(REPLY_LIMIT_S, connect=3.0),
                limits=httpx.Limits(max_connections=200),
                trust_env=False,
            )
            for url in urls
        ]

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for door in self._doors:
            await door.aclose()

    @property
    def n_doors(self) -> int:
        return len(self._doors)

    async def call(
        self,
        door: int,
        call: str,
        method: str,
        path: str,
        *,
        tenant: int,
        body: Any = None,
        headers: Mapping[str, str] | None = None,
        params: Mapping[str, str | float] | None = None,
        is_submit: bool = False,
    ) -> Reply | None:
        """`is_submit`: a connection that is lost leaves a request that nobody knows the id of."""
        history, began = self._history, self._now()
        history.calls[call] += 1
        try:
            response = await self._doors[door].request(
                method,
                path,
                json=body,
                headers={"authorization": f"Bearer {TENANTS[tenant]}", **(headers or {})},
                params=params,
            )
        except (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout):
            return None  # it was never asked
        except httpx.ReadTimeout:
            history.odd.append(f"{began:.3f} {call} {path}: no reply within {REPLY_LIMIT_S:g} s")
            history.unknown += is_submit
            return None
        except httpx.TransportError:
            history.unknown += is_submit
            return None
        return self._read(response, began, f"door-{door + 1}", call)

    def _read(self, response: httpx.Response, began: float, by: str, call: str) -> Reply:
        is_json = response.headers.get("content-type", "").startswith("application/json")
        body = response.json() if is_json and response.content else None
        named = response.headers.get("x-request-id", "")
        rid = named if ID.fullmatch(named) else None
        return Reply(began, self._now(), by, call, response.status_code, body, rid)

    def odd(self, reply: Reply, why: str) -> None:
        shown = str(reply.body)[:300]
        self._history.odd.append(
            f"{reply.began:.3f}-{reply.ended:.3f} {reply.by} {reply.call} {reply.rid} {reply.status} {why}: {shown}"
        )

    # --- one id

    async def poll(
        self, door: int, rid: str, tenant: int, *, wait_s: float = 0.0, call: str = "poll"
    ) -> Look | None:
        """What it is now; None where the service could not tell."""
        params = {"wait": wait_s} if wait_s else None
        reply = await self.call(door, call, "GET", f"/requests/{rid}", tenant=tenant, params=params)
        return None if reply is None else self.note_shown(rid, reply)

    async def timeline(self, door: int, rid: str, tenant: int, *, call: str) -> Look | None:
        """Tells the end of a request whose answer was dropped."""
        reply = await self.call(door, call, "GET", f"/requests/{rid}/timeline", tenant=tenant)
        return None if reply is None else self.note_shown(rid, reply)

    async def cancel(self, door: int, rid: str, tenant: int) -> Look | None:
        self._history.will_cancel(rid)
        path = f"/requests/{rid}/cancel"
        reply = await self.call(door, "cancel", "POST", path, tenant=tenant)
        look = None if reply is None else self.note_shown(rid, reply)
        if reply is not None and look is not None and not look.is_final and look.state != UNKNOWN:
            self.odd(reply, "to a cancel, which ends what it finds")
        return look

    async def drop(self, door: int, rid: str, tenant: int) -> None:
        """Ends it, and takes its answer away."""
        self._history.will_cancel(rid)
        asked = self._history.accepted[rid]
        for name in (rid, *asked.children):
            self._history.accepted[name].is_dropped = True
        reply = await self.call(door, "drop", "DELETE", f"/requests/{rid}", tenant=tenant)
        if reply is not None and reply.status != httpx.codes.NO_CONTENT:
            self.note_shown(rid, reply)

    # --- what replies say

    def note_shown(self, rid: str, reply: Reply) -> Look | None:
        """A reply that shows the request, or says why not."""
        look = self._shown(rid, reply)
        if look is not None:
            self._history.saw(rid, look)
            for item in _items(reply.body):
                self._history.saw(item["id"], self._look_at(reply, item))
        return look

    def _shown(self, rid: str, reply: Reply) -> Look | None:
        status = reply.status
        if status in (httpx.codes.OK, httpx.codes.ACCEPTED):
            return self._look_at(reply, reply.body)
        if status == httpx.codes.NOT_FOUND:
            return reply.look(UNKNOWN)
        if status == httpx.codes.GONE:
            return reply.look(EXPIRED)
        if status == httpx.codes.SERVICE_UNAVAILABLE and reply.code in UNAVAILABLE:
            self.check_broker_lost(reply)
            self._history.saw(rid, reply.look())
            return None
        self.odd(reply, f"shows {rid}")
        return None

    def _look_at(self, reply: Reply, shown: Mapping[str, Any]) -> Look:
        state, error = str(shown.get("status", "")), shown.get("error") or {}
        # A finished one whose answer was dropped says so as an error, and is finished all the same.
        code = "" if state == FINISHED else str(error.get("code", ""))
        finished_at = shown.get("finished_at")
        final_at = None if finished_at is None else finished_at - self._began_at
        return reply.look(state, code, shown.get("text"), final_at)

    def check_broker_lost(self, reply: Reply) -> None:
        """Nobody may be told that the broker forgot a request, unless it was emptied."""
        wipes = self._history.wipes
        if reply.code == "broker_lost" and not any(w.began < reply.ended for w in wipes):
            self.odd(reply, "and nothing was wiped")

    def note_answer(self, rid: str, reply: Reply) -> None:
        """A reply of /predict, which waits for the text. `rid` must have been accepted."""
        accepted = self._history.accepted
        is_shown = reply.status == httpx.codes.OK and "response" not in reply.body
        if reply.status == httpx.codes.ACCEPTED or is_shown:
            # Its wait was over; where it ended just then, it is shown as a poll would.
            self.note_shown(rid, reply)
            return
        if reply.status == httpx.codes.OK:
            told = reply.body["response"]
            failed = {item["index"]: item["code"] for item in reply.body.get("errors", ())}
            if isinstance(told, str):
                self._history.saw(rid, reply.look(FINISHED, text=told))
                return
            for index, (child, text) in enumerate(zip(accepted[rid].children, told, strict=True)):
                code = failed.get(index)
                if code is None:
                    self._history.saw(child, reply.look(FINISHED, text=text))
                elif code in ENDS:
                    self._history.saw(child, reply.look(ENDS[code], code))
            return
        if reply.code == "wait_timeout":
            self._history.will_cancel(rid)
        if reply.code in ENDS and not accepted[rid].is_list:
            self._history.saw(rid, reply.look(ENDS[reply.code]))
        else:
            self._history.saw(rid, reply.look())


def _items(body: Any) -> list[dict[str, Any]]:
    items = body.get("items", []) if isinstance(body, dict) else []
    return [item for item in items if "text" in item or "status" in item]
