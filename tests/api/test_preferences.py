"""`Prefer`, time-out headers, idempotency keys, and the long poll's wait."""

from __future__ import annotations

import pytest
from starlette.datastructures import Headers

from api.preferences import (
    check_client_id,
    header_seconds,
    idempotency_key,
    query_wait,
    read_prefer,
)
from shared.errors import InvalidRequest


@pytest.mark.parametrize(
    ("values", "wait_s", "applied"),
    [
        ([], None, None),
        (["respond-async"], 0.0, "respond-async"),
        (["Respond-Async, wait=5"], 5.0, "wait=5"),
        (["respond-async", "wait=7"], 7.0, "wait=7"),
        (["wait=0"], 0.0, "wait=0"),
        (["wait=99999"], 360.0, "wait=360"),
        (['wait="4"'], 4.0, "wait=4"),
        (["wait=-1"], None, None),
        (["wait=soon"], None, None),
        (["handling=strict; wait=3"], None, None),
        (["return=minimal"], None, None),
    ],
)
def test_preferences_are_read_and_never_refused(
    values: list[str], wait_s: float | None, applied: str | None
) -> None:
    prefer = read_prefer(values, 360)
    assert (prefer.wait_s, prefer.applied) == (wait_s, applied)
    assert prefer.is_given == (applied is not None)


@pytest.mark.parametrize("text", ["", "x", "nan", "inf", "-1", "0", "3601", "1e3", "1_0", "５"])
def test_a_bad_time_out_header_is_refused_by_name(text: str) -> None:
    headers = Headers(raw=[(b"x-queue-timeout", text.encode("utf-8"))])
    with pytest.raises(InvalidRequest, match="X-Queue-Timeout"):
        header_seconds(headers, "X-Queue-Timeout", 3600)


def test_a_time_out_header_is_in_seconds() -> None:
    assert header_seconds(Headers({"x-queue-timeout": "2.5"}), "X-Queue-Timeout", 3600) == 2.5
    assert header_seconds(Headers({}), "X-Queue-Timeout", 3600) is None


@pytest.mark.parametrize("key", [b"", b"with space", b"\x00", "ключ".encode(), b"x" * 256])
def test_a_bad_idempotency_key_is_refused(key: bytes) -> None:
    with pytest.raises(InvalidRequest, match="Idempotency-Key"):
        idempotency_key(Headers(raw=[(b"idempotency-key", key)]))


@pytest.mark.parametrize("value", ["", "a b", "a/b", "ü", "x" * 129, "\n"])
def test_a_bad_id_of_the_clients_own_is_refused(value: str) -> None:
    with pytest.raises(InvalidRequest, match="id"):
        check_client_id(value)


@pytest.mark.parametrize(("text", "wait_s"), [(None, 0), ("0", 0), ("2.5", 2.5), ("9999", 360)])
def test_a_polls_wait_is_cut_to_what_is_held(text: str | None, wait_s: float) -> None:
    assert query_wait(text, 360) == wait_s


@pytest.mark.parametrize("text", ["", "-1", "x", "nan", "inf"])
def test_a_bad_wait_is_refused_by_name(text: str) -> None:
    with pytest.raises(InvalidRequest, match="wait"):
        query_wait(text, 360)
