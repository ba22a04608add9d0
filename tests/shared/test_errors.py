"""The error tree: codes that clients may rely on, and what may be tried again."""

from __future__ import annotations

import inspect

import pytest

from shared import errors
from shared.errors import (
    Busy,
    CodecError,
    Ended,
    InvalidRequest,
    QueueFull,
    RefusedPredecessor,
    SluiceError,
)

# Clients branch on these: a code may be added, and none may change.
CODES = {
    "SluiceError": "internal_error",
    "InvalidRequest": "invalid_request",
    "UnsupportedParameter": "unsupported_parameter",
    "IdempotencyMismatch": "idempotency_mismatch",
    "ChainAcrossShards": "chain_across_shards",
    "PayloadTooLarge": "payload_too_large",
    "PromptTooLong": "prompt_too_long",
    "UnknownRequest": "unknown_request",
    "ResultExpired": "result_expired",
    "Forbidden": "forbidden",
    "QueueFull": "queue_full",
    "NoWorkers": "no_workers",
    "Draining": "draining",
    "BrokerUnavailable": "broker_unavailable",
    "BrokerLost": "broker_lost",
    "EngineError": "engine_error",
    "SettingsError": "bad_setting",
    "CodecError": "bad_record",
    "DependencyFailed": "dependency_failed",
}
# Without a code of their own: what they stand for is told by another.
NAMELESS = {
    "Busy": "internal_error",
    "Ended": "internal_error",
    "EngineDead": "engine_error",
    "BrokerRefused": "broker_unavailable",
    "RefusedPredecessor": "invalid_request",
}
RETRYABLE = {
    "Busy",
    "QueueFull",
    "NoWorkers",
    "Draining",
    "BrokerUnavailable",
    "BrokerLost",
    "BrokerRefused",
    "EngineDead",
}
STAGES = {"admission", "queue", "worker", "engine", "delivery"}
CLASSES: dict[str, type[SluiceError]] = {
    name: value
    for name, value in vars(errors).items()
    if inspect.isclass(value) and issubclass(value, SluiceError)
}


def test_the_codes_are_stable() -> None:
    own = {name: kind.code for name, kind in CLASSES.items() if "code" in vars(kind)}
    assert own == CODES


def test_every_code_belongs_to_one_error() -> None:
    assert len(set(CODES.values())) == len(CODES)
    inherited = {name: kind.code for name, kind in CLASSES.items() if "code" not in vars(kind)}
    assert inherited == NAMELESS


def test_what_may_be_tried_again() -> None:
    assert {name for name, kind in CLASSES.items() if kind.retryable} == RETRYABLE


def test_the_callers_own_fault_is_never_retryable() -> None:
    assert not any(k.retryable for k in CLASSES.values() if issubclass(k, InvalidRequest))


def test_every_stage_is_one_of_five() -> None:
    assert {kind.stage for kind in CLASSES.values()} <= STAGES


def test_the_tree_of_the_docstring_is_the_tree() -> None:
    tree = errors.__doc__ or ""
    above: dict[int, str] = {}
    drawn = {}
    for line in tree.splitlines():
        name = next((word for word in line.split() if word in CLASSES), None)
        if name:
            depth = line.index(name) // 4
            above[depth] = name
            drawn[name] = above[depth - 1] if depth else "Exception"
    assert drawn == {name: kind.__mro__[1].__name__ for name, kind in CLASSES.items()}


@pytest.mark.parametrize(
    "kind", [k for k in CLASSES.values() if not issubclass(k, Ended | RefusedPredecessor)]
)
def test_an_error_keeps_its_message(kind: type[SluiceError]) -> None:
    made = kind("said", b"raw") if issubclass(kind, CodecError) else kind("said")
    assert (str(made), made.message, made.param) == ("said", "said", None)


def test_an_error_names_the_field() -> None:
    assert InvalidRequest("top_p: no", param="top_p").param == "top_p"


def test_busy_says_when_to_come_back() -> None:
    assert QueueFull("full", retry_after_s=1.5).retry_after_s == 1.5
    assert Busy("busy").retry_after_s is None


def test_an_ended_request_tells_its_own_code() -> None:
    ended = Ended("cancelled", code="cancelled", request_id="q.0-a", retryable=True)
    assert (ended.ended_code, ended.request_id, ended.can_retry) == ("cancelled", "q.0-a", True)


def test_a_codec_error_keeps_the_bytes() -> None:
    assert CodecError("not a request", b"\x00\xff").raw == b"\x00\xff"
