"""Every error that Sluice names, each with a stable ``code``; knows nothing of HTTP.

SluiceError
├── InvalidRequest          the caller's input; never retryable
│   ├── UnsupportedParameter
│   ├── IdempotencyMismatch
│   ├── ChainAcrossShards   its predecessors live apart
│   ├── RefusedPredecessor  not known, or too many depend on it
│   ├── PayloadTooLarge
│   └── PromptTooLong
├── UnknownRequest          no such id, or another tenant's
├── ResultExpired           known, but its answer is gone
├── Forbidden
├── Busy                    come back later; retryable
│   ├── QueueFull
│   ├── NoWorkers
│   ├── Draining
│   └── BrokerUnavailable
│       ├── BrokerRefused   the broker turns this process away
│       └── BrokerLost      the broker forgot an accepted request
├── Ended                   what a waiting caller gets for a request that did not finish
├── DependencyFailed        the answer of a predecessor is not there
├── EngineError             the engine failed on one request
│   └── EngineDead          the engine failed for good
├── SettingsError           stops a start
└── CodecError              bytes that are no record of ours
"""

from __future__ import annotations

from typing import ClassVar


class SluiceError(Exception):
    """Root of the tree. `stage` is where it happened: admission, queue, worker, engine, delivery."""

    code: ClassVar[str] = "internal_error"
    retryable: ClassVar[bool] = False
    stage: ClassVar[str] = "admission"

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param


class InvalidRequest(SluiceError):
    code = "invalid_request"


class UnsupportedParameter(InvalidRequest):
    code = "unsupported_parameter"


class IdempotencyMismatch(InvalidRequest):
    code = "idempotency_mismatch"


class ChainAcrossShards(InvalidRequest):
    code = "chain_across_shards"


class RefusedPredecessor(InvalidRequest):
    """A request that cannot be depended on; `predecessor` is its id in the queue."""

    def __init__(self, predecessor: str, *, is_known: bool) -> None:
        why = "too many requests depend on it" if is_known else "no such single request is known"
        super().__init__(f"depends_on: {predecessor}: {why}", param="depends_on")
        self.predecessor = predecessor
        self.why = why


class PayloadTooLarge(InvalidRequest):
    code = "payload_too_large"


class PromptTooLong(InvalidRequest):
    code = "prompt_too_long"
    stage = "worker"


class UnknownRequest(SluiceError):
    code = "unknown_request"


class ResultExpired(SluiceError):
    code = "result_expired"


class Forbidden(SluiceError):
    code = "forbidden"


class Busy(SluiceError):
    """The service cannot take this now; `retry_after_s` says when to try again."""

    retryable = True

    def __init__(
        self, message: str, *, param: str | None = None, retry_after_s: float | None = None
    ) -> None:
        super().__init__(message, param=param)
        self.retry_after_s = retry_after_s


class QueueFull(Busy):
    code = "queue_full"


class NoWorkers(Busy):
    code = "no_workers"


class Draining(Busy):
    code = "draining"


class BrokerUnavailable(Busy):
    """`may_have_run`: the call was sent, and only its reply is missing."""

    code = "broker_unavailable"
    stage = "queue"
    may_have_run = False


class BrokerRefused(BrokerUnavailable):
    """For its login, its permissions or a certificate: the message names REDIS_URL and holds no secret."""


class BrokerLost(BrokerUnavailable):
    code = "broker_lost"


class Ended(SluiceError):
    """A request that ended as CANCELLED or ERROR, told to a caller who waited for its text."""

    stage = "delivery"

    def __init__(
        self, message: str, *, code: str, request_id: str, retryable: bool = False
    ) -> None:
        super().__init__(message)
        self.ended_code = code
        self.request_id = request_id
        self.can_retry = retryable


class DependencyFailed(SluiceError):
    code = "dependency_failed"
    stage = "queue"


class EngineError(SluiceError):
    code = "engine_error"
    stage = "engine"


class EngineDead(EngineError):
    retryable = True


class SettingsError(SluiceError):
    """A setting that stops the start; the message names the variable and where it was set."""

    code = "bad_setting"


class CodecError(SluiceError):
    """Bytes that are no record of ours; `raw` keeps them for the dead letter."""

    code = "bad_record"
    stage = "queue"

    def __init__(self, message: str, raw: bytes) -> None:
        super().__init__(message)
        self.raw = raw
