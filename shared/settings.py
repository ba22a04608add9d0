"""Typed settings from the environment and `.env`: the base class, and what both sides of the queue read.

Order: argument > environment > `.env` > default. Blank means absent. A bad value of ours stops the
start and names variable and source; a bad value of a variable of the first seed warns and the default is taken.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    Field,
    ValidationError,
    ValidationInfo,
    ValidatorFunctionWrapHandler,
    field_validator,
)
from pydantic_settings import BaseSettings, SettingsConfigDict

from shared.errors import SettingsError

log = logging.getLogger(__name__)
TRUTHY = frozenset({"1", "true", "yes", "y", "on"})


def seed(default: Any, *, clamp: tuple[float, float] | None = None) -> Any:
    """A field of the first seed: forgiving of bad values, and clamped where the seed clamps."""
    return Field(default=default, json_schema_extra={"seed": True, "clamp": clamp})  # type: ignore[dict-item]


class Settings(BaseSettings):
    """Base of every process's settings; a field `queue_cap` is the variable QUEUE_CAP."""

    model_config = SettingsConfigDict(
        env_file=".env",
        env_ignore_empty=True,
        extra="ignore",
        frozen=True,
        case_sensitive=False,
        enable_decoding=False,
        protected_namespaces=(),
    )

    @field_validator("*", mode="wrap")
    @classmethod
    def _forgive_seed(
        cls, value: Any, handler: ValidatorFunctionWrapHandler, info: ValidationInfo
    ) -> Any:
        field = cls.model_fields[str(info.field_name)]
        extra = field.json_schema_extra
        if not (isinstance(extra, dict) and extra.get("seed")):
            return handler(value)
        if isinstance(value, str) and field.annotation is bool:
            return value.strip().lower() in TRUTHY
        try:
            taken = handler(value.strip() if isinstance(value, str) else value)
        except ValueError:
            default = field.get_default(call_default_factory=True, validated_data={})
            log.warning("%s: bad value, taking %r", str(info.field_name).upper(), default)
            return default
        clamp: Any = extra.get("clamp")
        return max(clamp[0], min(clamp[1], taken)) if clamp and taken is not None else taken

    @classmethod
    def load(cls, **given: Any) -> Self:
        """Read once, at start. `given` (from the command line) stands over everything.

        Raises SettingsError naming the variable, what is wrong and where it was set.
        """
        try:
            return cls(**given)
        except ValidationError as error:
            lines = []
            for item in error.errors():
                name = str(item["loc"][0]).upper() if item["loc"] else cls.__name__
                lines.append(
                    f"{name}: {item['msg']}, got {item['input']!r} (from {_source(name, given)})"
                )
            raise SettingsError("bad setting: " + "; ".join(lines)) from None


def _source(name: str, given: dict[str, Any]) -> str:
    if name.lower() in given:
        return "command line"
    if any(key.upper() == name and value for key, value in os.environ.items()):
        return "environment"
    return ".env"


def warn_unknown(
    env_file: Path = Path(".env"), known_file: Path = Path(".env.example")
) -> list[str]:
    """Names in `.env` that no process reads (likely misspelt), by the list in `.env.example`."""
    if not (env_file.is_file() and known_file.is_file()):
        return []
    known = _names(known_file, commented=True)
    unknown = sorted(_names(env_file, commented=False) - known)
    for name in unknown:
        log.warning("%s in %s is no setting of Sluice", name, env_file)
    return unknown


def _names(path: Path, *, commented: bool) -> set[str]:
    names = set()
    for line in path.read_text(encoding="utf-8").splitlines():
        text = line.strip()
        if commented:
            text = text.removeprefix("#").lstrip()
        name, equals, _ = text.removeprefix("export ").partition("=")
        if equals and name.strip().isidentifier() and name.strip().isupper():
            names.add(name.strip())
    return names


def _slug(value: str) -> str:
    if not (
        0 < len(value) <= 32
        and all(c.isascii() and (c.islower() or c.isdigit() or c == "-") for c in value)
    ):
        raise ValueError("must be 1..32 of a-z, 0-9 and -")
    return value


class LogSettings(Settings):
    """How a process logs."""

    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_format: Literal["text", "json"] = "text"


class QueueSettings(Settings):
    """What both sides of the queue must agree on. Times in seconds."""

    redis_url: str = "redis://127.0.0.1:6379/0"
    queue_name: Annotated[str, AfterValidator(_slug)] = "default"
    lease_s: Annotated[float, Field(ge=1, le=600)] = 15.0
    max_crashes: Annotated[int, Field(ge=0, le=10)] = 2
    max_attempts: Annotated[int, Field(ge=1, le=20)] = 3
    result_record_ttl_s: Annotated[float, Field(ge=1)] = 86_400.0
    result_body_ttl_s: Annotated[float, Field(ge=1)] = 3_600.0
    broker_budget_s: Annotated[float, Field(gt=0, le=30)] = 2.5
