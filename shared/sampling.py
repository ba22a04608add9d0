"""How to generate: one frozen, hashable, validated record, and the keys by which requests are batched.

Fields, defaults and checks are the second seed's with its faults mended; ranges follow vLLM's SamplingParams.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from typing import Any

import msgspec

from shared.errors import InvalidRequest

MAX_STOPS = 16
MAX_STOP_CHARS = 256


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`max_tokens` is the one field without a default.

    `temperature` 0 is greedy: top_p, top_k and seed are then without effect. `top_k` -1 is off (0 is
    taken as -1). Penalties follow vLLM: repetition over prompt and output, the others over output.
    Raises InvalidRequest naming the field.
    """

    max_tokens: int
    min_tokens: int = 1
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    echo: bool = False
    skip_special_tokens: bool = True
    logprobs: int | None = None
    seed: int | None = None
    ignore_eos: bool = False

    def __post_init__(self) -> None:
        if self.top_k == 0:
            msgspec.structs.force_setattr(self, "top_k", -1)
        if self.stop_token_ids:
            ids = tuple(dict.fromkeys(self.stop_token_ids))
            msgspec.structs.force_setattr(self, "stop_token_ids", ids)
        self._check()

    def _check(self) -> None:
        _require(self.max_tokens >= 1, "max_tokens", "must be at least 1", self.max_tokens)
        _require(self.min_tokens >= 0, "min_tokens", "must be at least 0", self.min_tokens)
        _require(
            self.min_tokens <= self.max_tokens,
            "min_tokens",
            f"must not be above max_tokens ({self.max_tokens})",
            self.min_tokens,
        )
        _require(
            _within(self.temperature, 0, 2), "temperature", "must be in 0..2", self.temperature
        )
        _require(
            _within(self.top_p, 0, 1) and self.top_p > 0, "top_p", "must be in (0, 1]", self.top_p
        )
        _require(self.top_k >= -1, "top_k", "must be -1 or 0 (off) or at least 1", self.top_k)
        _require(
            math.isfinite(self.repetition_penalty) and self.repetition_penalty > 0,
            "repetition_penalty",
            "must be above 0",
            self.repetition_penalty,
        )
        for name in ("frequency_penalty", "presence_penalty"):
            value = getattr(self, name)
            _require(_within(value, -2, 2), name, "must be in -2..2", value)
        _require(
            len(self.stop) <= MAX_STOPS, "stop", f"at most {MAX_STOPS} strings", len(self.stop)
        )
        for text in self.stop:
            _require(
                0 < len(text) <= MAX_STOP_CHARS,
                "stop",
                f"each string must have 1..{MAX_STOP_CHARS} characters",
                text[:40],
            )
        for token_id in self.stop_token_ids:
            _require(0 <= token_id < 2**31, "stop_token_ids", "must be token ids", token_id)
        if self.logprobs is not None:
            _require(0 <= self.logprobs <= 20, "logprobs", "must be in 0..20", self.logprobs)
        if self.seed is not None:
            _require(-(2**63) <= self.seed < 2**63, "seed", "must fit in 64 bits", self.seed)

    @property
    def is_greedy(self) -> bool:
        """vLLM's own border: below 1e-5 it takes the most likely token."""
        return self.temperature < 1e-5

    @property
    def has_penalties(self) -> bool:
        return (self.repetition_penalty, self.frequency_penalty, self.presence_penalty) != (1, 0, 0)

    @property
    def bucket_key(self) -> str:
        """Digest of every field that an engine can see, equal in every process and release.

        Greedy requests share a key whatever their top_p, top_k and seed; the order of stop strings
        counts only where one ends another, since only then can it change which one is reported.
        """
        fields = msgspec.to_builtins(self)
        fields["stop"] = _canonical_stops(self.stop)
        fields["stop_token_ids"] = sorted(self.stop_token_ids)
        if self.is_greedy:
            fields["temperature"] = 0.0
            for name in ("top_p", "top_k", "seed"):
                fields.pop(name, None)
        # -0.0 and 0.0, 1 and 1.0 are one value to an engine, so they must be one text here.
        numbers = {k: v + 0.0 if type(v) in (int, float) else v for k, v in fields.items()}
        data = msgspec.json.encode(numbers, order="deterministic")
        return hashlib.blake2b(data, digest_size=8).hexdigest()

    def batch_key(self, rows_share: frozenset[str]) -> tuple[object, ...]:
        """What must be equal in one engine call: the fields in `rows_share`, an engine's own set."""
        return tuple((name, getattr(self, name)) for name in sorted(rows_share))

    def to_dict(self) -> dict[str, Any]:
        """Every field that is set, lists as lists; `from_dict` takes it back."""
        every = {name: getattr(self, name) for name in self.__struct_fields__}
        return {
            k: list(v) if isinstance(v, tuple) else v
            for k, v in every.items()
            if v is not None and v != () and not (k in _NEWER and v == _NEWER[k])
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> SamplingParams:
        """None means absent; one stop string may stand for a list; an unknown key is refused."""
        known = set(cls.__struct_fields__)
        for key in data:
            _require(key in known, key, "is not a sampling parameter", None)
        given = {k: v for k, v in data.items() if v is not None}
        _require("max_tokens" in given, "max_tokens", "is required", None)
        if isinstance(given.get("stop"), str):
            given["stop"] = [given["stop"]]
        for key, value in given.items():
            if isinstance(value, float) and not math.isfinite(value):
                raise InvalidRequest(f"{key}: must be a finite number", param=key)
        try:
            return msgspec.convert(given, cls, strict=True)
        except msgspec.ValidationError as error:
            if isinstance(error.__cause__, InvalidRequest):
                raise error.__cause__ from None
            text, _, path = str(error).partition(" - at `$.")
            name = path.rstrip("`").split("[")[0] or None
            raise InvalidRequest(f"{name or 'sampling'}: {text}", param=name) from None


# Fields that the second seed does not have; left out of to_dict while they say nothing.
_NEWER: dict[str, object] = {"ignore_eos": False}


def _require(holds: bool, name: str, rule: str, got: object) -> None:
    if not holds:
        tail = "" if got is None else f", got {got!r}"
        raise InvalidRequest(f"{name}: {rule}{tail}", param=name)


def _within(value: float, low: float, high: float) -> bool:
    return math.isfinite(value) and low <= value <= high


def _canonical_stops(stops: tuple[str, ...]) -> list[str]:
    unique = list(dict.fromkeys(stops))
    order_counts = any(a != b and a.endswith(b) for a in unique for b in unique)
    return unique if order_counts else sorted(unique)
