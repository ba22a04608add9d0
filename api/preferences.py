"""How a caller wants to be answered, read from headers and query: RFC 7240 `Prefer`, time-outs, idempotency."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from starlette.datastructures import Headers

from shared.errors import InvalidRequest

_KEY = re.compile(r"[\x21-\x7e]{1,255}")
_CLIENT_ID = re.compile(r"[A-Za-z0-9._-]{1,128}")
HEADERS = ("X-Queue-Timeout", "X-Request-Timeout", "Idempotency-Key", "content-type")


@dataclass(frozen=True)
class Prefer:
    """`wait_s` None: as long as the service holds a caller; 0: answer 202 at once."""

    wait_s: float | None = None
    is_given: bool = False
    applied: str | None = None


PLAIN = Prefer()


def read_prefer(values: Iterable[str], most_s: float) -> Prefer:
    """A preference is no demand: what is not understood is passed over, and a wait is cut to `most_s`."""
    wait_s: float | None = None
    is_async = False
    for value in values:
        for part in value.split(","):
            name, _, argument = (piece.strip() for piece in part.partition(";")[0].partition("="))
            if name.lower() == "respond-async":
                is_async = True
            elif name.lower() == "wait" and argument.strip('"').isdecimal():
                wait_s = min(float(argument.strip('"')), most_s)
    if wait_s is not None:
        return Prefer(wait_s, True, f"wait={wait_s:g}")
    return Prefer(0.0, True, "respond-async") if is_async else PLAIN


def idempotency_key(headers: Headers) -> str | None:
    key = headers.get("idempotency-key")
    if key is not None and not _KEY.fullmatch(key):
        raise InvalidRequest(
            "Idempotency-Key: must be 1..255 visible ASCII characters", param="Idempotency-Key"
        )
    return key


def check_client_id(value: str) -> str:
    if not _CLIENT_ID.fullmatch(value):
        raise InvalidRequest("id: must be 1..128 of A-Z, a-z, 0-9, '.', '_' and '-'", param="id")
    return value


def header_seconds(headers: Headers, name: str, most_s: float) -> float | None:
    """A time-out header; None where it is not given."""
    text = headers.get(name)
    if text is None:
        return None
    seconds = _seconds(text)
    if seconds is None or not 0 < seconds <= most_s:
        raise InvalidRequest(f"{name}: must be a number above 0 and at most {most_s:g}", param=name)
    return seconds


def query_wait(text: str | None, most_s: float) -> float:
    """`?wait=20`: how long a poll may be held, cut to what the service holds."""
    if text is None:
        return 0.0
    seconds = _seconds(text)
    if seconds is None or seconds < 0:
        raise InvalidRequest("wait: must be a number of seconds from 0", param="wait")
    return min(seconds, most_s)


def _seconds(text: str) -> float | None:
    """Plain decimals only: `float` would also take nan, inf and 1_0."""
    return float(text) if re.fullmatch(r"\d{1,9}(\.\d{1,9})?", text, re.ASCII) else None
