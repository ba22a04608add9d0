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
MAX_STOP_TOKEN_IDS = 1024
INT32_MAX = 2**31 - 1
_FLOATS = (
    "temperature",
    "top_p",
    "repetition_penalty",
    "frequency_penalty",
    "presence_penalty",
)


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`max_tokens` is the one field without a default.

    `temperature` 0 is greedy: top_p, top_k and seed are then without effect. `top_k` -1 is off (0 is
    taken as -1). Penalties follow vLLM: repetition over prompt and output, the others over output.
    Lists become tuples, so that the record is hashable and nobody changes it later. Raises
    InvalidRequest naming the field.
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
        if type(self.stop) is not tuple:
            msgspec.structs.force_setattr(self, "stop", _strings(self.stop))
        if type(self.stop_token_ids) is not tuple or self.stop_token_ids:
            ids = tuple(dict.fromkeys(self.stop_token_ids))
            msgspec.structs.force_setattr(self, "stop_token_ids", ids)
        self._check()

    def _check(self) -> None:
        _require(
            1 <= self.max_tokens <= INT32_MAX,
            "max_tokens",
            "must be at least 1 and fit in 32 bits",
            self.max_tokens,
        )
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
        _require(
            -1 <= self.top_k <= INT32_MAX,
            "top_k",
            "must be -1 or 0 (off) or at least 1",
            self.top_k,
        )
        _require(
            0 < self.repetition_penalty < math.inf,
            "repetition_penalty",
            "must be above 0 and finite",
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
                text,
            )
            _require(is_unicode(text), "stop", "each string must be valid Unicode", text)
        _require(
            len(self.stop_token_ids) <= MAX_STOP_TOKEN_IDS,
            "stop_token_ids",
            f"at most {MAX_STOP_TOKEN_IDS} ids",
            len(self.stop_token_ids),
        )
        for token_id in self.stop_token_ids:
            _require(0 <= token_id <= INT32_MAX, "stop_token_ids", "must be token ids", token_id)
        if self.logprobs is not None:
            _require(0 <= self.logprobs <= 20, "logprobs", "must be in 0..20", self.logprobs)
        if self.seed is not None:
            _require(-(2**63) <= self.seed < 2**63, "seed", "must fit in 64 bits", self.seed)

    @property
    def is_greedy(self) -> bool:
        """Below 1e-5 only the most likely token is left.

        An engine must be told 0 then: vLLM raises what is between 0 and 0.01 to 0.01, and samples.
        """
        return self.temperature < 1e-5

    @property
    def bucket_key(self) -> str:
        """Digest of every field that an engine can see, equal in every process and release.

        Greedy requests share a key whatever their top_p, top_k and seed; the order of stop strings
        counts only where one ends another, since only then can it change which one is reported.
        A field at its default is left out, so that a new field changes no key of today.
        """
        fields: dict[str, Any] = {"max_tokens": self.max_tokens}
        defaults = self.__struct_defaults__
        for name, default in zip(self.__struct_fields__[-len(defaults) :], defaults, strict=True):
            value = getattr(self, name)
            if value != default:
                # 1 and 1.0 are one value to an engine, so they must be one text here.
                fields[name] = float(value) if name in _FLOATS else value
        if self.stop:
            fields["stop"] = _canonical_stops(self.stop)
        if self.stop_token_ids:
            fields["stop_token_ids"] = sorted(self.stop_token_ids)
        if self.is_greedy:
            fields["temperature"] = 0.0
            for name in ("top_p", "top_k", "seed"):
                fields.pop(name, None)
        data = msgspec.json.encode(fields, order="sorted")
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
            if key not in known:
                shown = _cut(key if key.isprintable() else repr(key))
                raise InvalidRequest(f"{shown}: is not a sampling parameter", param=shown)
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
            text, _, path = str(error).partition(" - at `$.")
            name = path.rstrip("`").split("[")[0] or None
            raise InvalidRequest(f"{name or 'sampling'}: {text}", param=name) from None


# Fields that the second seed does not have; left out of to_dict while they say nothing.
_NEWER: dict[str, object] = {"ignore_eos": False}


def _require(holds: bool, name: str, rule: str, got: object) -> None:
    if not holds:
        tail = "" if got is None else f", got {_shown(got)}"
        raise InvalidRequest(f"{name}: {rule}{tail}", param=name)


def _shown(value: object) -> str:
    """Short and printable, whatever a client sent."""
    if isinstance(value, int) and value.bit_length() > 64:
        return "a number of over 64 bits"  # of thousands of digits, Python prints none
    return _cut(repr(value))


def _cut(text: str) -> str:
    return text if len(text) <= 60 else text[:57] + "..."


def _strings(stop: Any) -> tuple[str, ...]:
    return (stop,) if isinstance(stop, str) else tuple(stop)


def is_unicode(text: str) -> bool:
    """A lone surrogate can be written in JSON, but neither stored nor generated."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _within(value: float, low: float, high: float) -> bool:
    """False for NaN, as every comparison with it is."""
    return low <= value <= high


def _canonical_stops(stops: tuple[str, ...]) -> list[str]:
    unique = list(dict.fromkeys(stops))
    order_counts = any(a != b and a.endswith(b) for a in unique for b in unique)
    return unique if order_counts else sorted(unique)
