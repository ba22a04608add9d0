"""What the front door reads from the environment and `.env`, and whether it may start with it.

Owns the defaults and limits of the HTTP side. Variables of the first seed keep their names and are forgiving.
"""

from __future__ import annotations

import hashlib
import ipaddress
import json
import logging
import os
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from dotenv import dotenv_values
from pydantic import AfterValidator, BeforeValidator, Field, ValidationInfo

from shared.errors import InvalidRequest, SettingsError
from shared.sampling import INT32_MAX, SamplingParams
from shared.settings import LogSettings, QueueSettings, seed

log = logging.getLogger(__name__)
VERSION = "0.1.0"
BUDGET_CEILING = 4096
_BUDGET = (1, BUDGET_CEILING)
_HITS = (1, 5)
END_MARKERS = ("<|im_end|>", "<|endoftext|>")
SYSTEM_PROMPT = (
    "You are a helpful assistant. Answer the question in one short sentence, "
    "without reasoning, examples or repetition."
)

# fmt: off
# Shown by /info when set: settings that shape answers, none of them a secret.
PUBLIC_VARIABLES = (
    "MODEL_ID", "MODEL_DIR", "USE_VLLM", "FORCE_VLLM", "BATCH_MODE", "BATCH_CONCURRENCY",
    "GPU_MEMORY_UTILIZATION", "DTYPE", "MAX_MODEL_LEN", "MAX_NEW_TOKENS", "MAX_NEW_TOKENS_CODE",
    "MAX_NEW_TOKENS_CODE_SOFT", "MAX_NEW_TOKENS_CODE_HARD", "TEMPERATURE", "TOP_P", "TOP_K",
    "REPETITION_PENALTY", "FREQUENCY_PENALTY", "STOP_STRINGS", "STOP_ON_DOUBLE_NEWLINE",
    "VLLM_QUANTIZATION", "VLLM_LOAD_FORMAT", "VLLM_KV_CACHE_DTYPE", "VLLM_MAX_NUM_SEQS",
    "VLLM_MAX_NUM_BATCHED_TOKENS", "VLLM_TOKENIZER_POOL_SIZE", "VLLM_TOKENIZER_POOL_TYPE",
    "SERVE_VLLM_ENGINE",
)

# The limits that /info shows, by the names under which they are set.
LIMITS = (
    "QUEUE_CAP", "QUEUE_TOKENS_CAP", "TENANT_QUEUE_CAP", "TENANT_QUEUE_TOKENS_CAP", "LIST_LIMIT",
    "MAX_BODY_BYTES", "SYNC_WAIT_S", "MAX_QUEUE_S", "MAX_TIMEOUT_S", "MAX_TOKENS_CAP",
    "DEFAULT_MAX_TOKENS", "RESULT_RECORD_TTL_S", "RESULT_BODY_TTL_S", "LEASE_S", "MAX_CRASHES",
    "MAX_ATTEMPTS", "BROKER_BUDGET_S",
)

# Sampling fields of /predict, each with a variable for its default.
PREDICT_SAMPLING = (
    "temperature", "top_p", "top_k", "repetition_penalty", "frequency_penalty",
)
# What PROFILE=neutral leaves without effect.
SEED_FACE = (
    "max_new_tokens", "max_new_tokens_code", "max_new_tokens_code_hard", "max_new_tokens_code_soft",
    "disable_token_routing", "hard_code_min_hits", "long_answer_enable_default",
    "long_answer_min_hits", "hard_code_question_keywords", "long_answer_keywords",
    "log_token_routing", *PREDICT_SAMPLING, "stop_on_double_newline", "stop_strings",
    "system_prompt",
)
# fmt: on


def _whole(value: Any) -> Any:
    """Only digits make a whole number here: the first seed takes "2.0" for a bad value."""
    return int(value) if isinstance(value, str) else value


def _words(value: Any) -> Any:
    """A comma list of keywords: trimmed, lower case, each once."""
    if not isinstance(value, str):
        return value
    return tuple(dict.fromkeys(w for part in value.split(",") if (w := part.strip().lower())))


def _stops(value: Any) -> Any:
    """A comma list, or a JSON list for strings with a comma or newline; none means the end markers."""
    if not isinstance(value, str):
        return value
    if value.startswith("["):
        parts = json.loads(value)
        if not all(isinstance(part, str) for part in parts):
            raise ValueError("a JSON list must hold strings")
        return tuple(part for part in parts if part) or END_MARKERS
    return tuple(part.strip() for part in value.split(",") if part.strip()) or END_MARKERS


def _as_sampling(value: Any, info: ValidationInfo) -> Any:
    """By the rules of requests: a default that no request may have would be refused in the name of each."""
    name = str(info.field_name)
    if name == "stop_strings":
        name, tried = "stop", _all_stops(value, info.data.get("stop_on_double_newline", False))
    else:
        tried = value
    try:
        SamplingParams.from_dict({"max_tokens": 1, "min_tokens": 0, name: tried})
    except InvalidRequest as error:
        raise ValueError(error.message) from None
    return value


def _all_stops(strings: tuple[str, ...], on_double_newline: bool) -> tuple[str, ...]:
    front = ("\n\n",) if on_double_newline else ()
    return tuple(dict.fromkeys(front + strings))


def _key_digests(value: Any) -> Any:
    """Only digests are kept, so that no key can be read out of a running process's settings."""
    if not isinstance(value, str):
        return value
    return tuple(key_digest(key.strip()) for key in value.split(",") if key.strip())


def key_digest(key: str) -> str:
    return hashlib.blake2b(key.encode(), digest_size=32).hexdigest()


Whole = Annotated[int, BeforeValidator(_whole)]
Words = Annotated[tuple[str, ...], BeforeValidator(_words)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Sampled = AfterValidator(_as_sampling)
Tokens = Annotated[int, Field(ge=1, le=INT32_MAX)]


class ApiSettings(QueueSettings, LogSettings):
    """One front-door process. Times in seconds; a cap of 0 is no cap."""

    host: str = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65_535)] = 8000
    allow_anonymous: bool = False
    api_keys: Annotated[tuple[str, ...], BeforeValidator(_key_digests)] = Field((), repr=False)
    admin_token: str | None = Field(None, repr=False)
    access_log: bool = False
    api_drain_s: Annotated[float, Field(ge=0, le=600)] = 7.0

    queue_cap: Annotated[int, Field(ge=0)] = 10_000
    queue_tokens_cap: Annotated[int, Field(ge=0)] = 50_000_000
    tenant_queue_cap: Annotated[int, Field(ge=0)] = 0
    tenant_queue_tokens_cap: Annotated[int, Field(ge=0)] = 0
    list_limit: Annotated[int, Field(ge=1, le=100_000)] = 1_024
    max_body_bytes: Annotated[int, Field(ge=1_024)] = 10 * 2**20
    sync_wait_s: Positive = 360.0
    max_queue_s: Positive = 3_600.0
    max_timeout_s: Positive = 3_600.0
    max_tokens_cap: Tokens = 4_096
    default_max_tokens: Tokens = 512

    profile: Literal["seed", "neutral"] = "seed"
    max_new_tokens: Whole = seed(32, clamp=_BUDGET)
    max_new_tokens_code: Whole = seed(192, clamp=_BUDGET)
    max_new_tokens_code_hard: Whole | None = seed(None, clamp=_BUDGET)
    max_new_tokens_code_soft: Whole = seed(64, clamp=_BUDGET)
    disable_token_routing: bool = seed(False)
    hard_code_min_hits: Whole = seed(1, clamp=_HITS)
    long_answer_enable_default: bool = seed(True)
    long_answer_min_hits: Whole = seed(1, clamp=_HITS)
    code_question_keywords: Words = seed(())
    hard_code_question_keywords: Words = seed(())
    long_answer_keywords: Words = seed(())
    log_token_routing: bool = seed(False)

    temperature: Annotated[float, Sampled] = seed(0.0)
    top_p: Annotated[float, Sampled] = seed(1.0)
    top_k: Annotated[Whole, Sampled] = seed(1)
    repetition_penalty: Annotated[float, Sampled] = seed(1.05)
    frequency_penalty: Annotated[float, Sampled] = seed(0.1)
    # Before STOP_STRINGS, which has room for one string less with it.
    stop_on_double_newline: bool = seed(False)
    stop_strings: Annotated[tuple[str, ...], BeforeValidator(_stops), Sampled] = seed(END_MARKERS)
    output_trim_examples: bool = seed(True)
    output_max_sentences: Whole = seed(6, clamp=(1, 12))
    system_prompt: str = SYSTEM_PROMPT

    @classmethod
    def load(cls, **given: Any) -> Self:
        settings = super().load(**given)
        settings.check_start()
        unused = [name.upper() for name in SEED_FACE if name in settings.model_fields_set]
        if unused and settings.profile == "neutral":
            log.warning("without effect in PROFILE=neutral: %s", ", ".join(unused))
        return settings

    def check_start(self) -> None:
        """Raises SettingsError where single values are right and their combination is not."""
        if not (self.is_loopback or self.api_keys or self.allow_anonymous):
            raise SettingsError(
                f"HOST: {self.host} can be reached from other machines, so set API_KEYS "
                "(a comma list of keys), or ALLOW_ANONYMOUS=1 to serve everybody"
            )
        longest = max(self.sync_wait_s, self.max_queue_s, self.max_timeout_s)
        if self.result_record_ttl_s < 2 * longest + 60:
            raise SettingsError(
                f"RESULT_RECORD_TTL_S: {self.result_record_ttl_s:g} is under twice the longest wait "
                f"plus 60 ({2 * longest + 60:g}; the longest of SYNC_WAIT_S, MAX_QUEUE_S, "
                "MAX_TIMEOUT_S), so a finished request could be run again"
            )
        if self.default_max_tokens > self.max_tokens_cap:
            raise SettingsError(
                f"DEFAULT_MAX_TOKENS: {self.default_max_tokens} is above MAX_TOKENS_CAP "
                f"({self.max_tokens_cap})"
            )

    @property
    def is_loopback(self) -> bool:
        return is_loopback_host(self.host)

    @property
    def hard_budget(self) -> int:
        """MAX_NEW_TOKENS_CODE_HARD follows MAX_NEW_TOKENS_CODE while unset."""
        if self.max_new_tokens_code_hard is None:
            return self.max_new_tokens_code
        return self.max_new_tokens_code_hard

    @property
    def stops(self) -> tuple[str, ...]:
        return _all_stops(self.stop_strings, self.stop_on_double_newline)

    @property
    def predict_defaults(self) -> dict[str, int | float]:
        """What /predict takes for what a body leaves out; the budget is that of a short answer."""
        if self.profile == "neutral":
            source: Any = SamplingParams(max_tokens=self.default_max_tokens)
            budget = source.max_tokens
        else:
            source, budget = self, min(self.max_new_tokens, self.max_tokens_cap)
        return {"max_new_tokens": budget, **{n: getattr(source, n) for n in PREDICT_SAMPLING}}

    @property
    def built_in_system_prompt(self) -> str:
        """What /predict puts before a prompt as long as no operator stored one; "" is none."""
        return "" if self.profile == "neutral" else self.system_prompt

    @property
    def limits(self) -> dict[str, int | float]:
        return {name: getattr(self, name.lower()) for name in LIMITS}


def is_loopback_host(host: str) -> bool:
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def public_variables(env_file: Path = Path(".env")) -> dict[str, str]:
    """Those of PUBLIC_VARIABLES that are set, as they were written; the environment stands over `.env`."""
    from_file = dotenv_values(env_file) if env_file.is_file() else {}
    found = {name: os.environ.get(name) or from_file.get(name) for name in PUBLIC_VARIABLES}
    return {name: value for name, value in found.items() if value}
