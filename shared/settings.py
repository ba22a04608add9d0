"""Typed settings from the environment and `.env`: the base class, and what both sides of the queue read.

Order: argument > environment > `.env` > default. Blank means absent. A bad value of ours stops the
start and names variable and source; a bad value of a variable of the first seed warns and the default is taken.
"""

from __future__ import annotations

import logging
import math
import os
import re
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from dotenv import dotenv_values
from pydantic import (
    AfterValidator,
    Field,
    ValidationError,
    ValidationInfo,
    ValidatorFunctionWrapHandler,
    field_validator,
)
from pydantic_core import ErrorDetails
from pydantic_settings import (
    BaseSettings,
    EnvSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)

from shared.errors import SettingsError

log = logging.getLogger(__name__)
TRUTHY = frozenset({"1", "true", "yes", "y", "on"})


def seed(
    default: Any, *, clamp: tuple[float, float] | None = None, keeps_blanks: bool = False
) -> Any:
    """A field of the first seed: forgiving of bad values, and clamped where the seed clamps. With
    `keeps_blanks` a value of blanks says something else than none.
    """
    extra: dict[str, Any] = {"seed": True, "clamp": clamp, "keeps_blanks": keeps_blanks}
    return Field(default=default, json_schema_extra=extra)


class Settings(BaseSettings):
    """Base of every process's settings; a field `queue_cap` is the variable QUEUE_CAP."""

    model_config = SettingsConfigDict(
        env_file=".env",
        env_ignore_empty=True,
        extra="ignore",
        frozen=True,
        case_sensitive=False,
        enable_decoding=False,
        dotenv_filtering="only_existing",
        protected_namespaces=(),
    )

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Argument, environment, `.env`; white space around a value does not count in the two latter."""
        for source in (env_settings, dotenv_settings):
            if isinstance(source, EnvSettingsSource):
                values = {
                    name: value.strip() or (value if cls._keeps_blanks(name) else "")
                    for name, value in source.env_vars.items()
                    if value is not None
                }
                source.env_vars = {name: value for name, value in values.items() if value}
        return init_settings, env_settings, dotenv_settings

    @classmethod
    def _keeps_blanks(cls, name: str) -> bool:
        field = cls.model_fields.get(name.lower())
        extra = field.json_schema_extra if field is not None else None
        return isinstance(extra, dict) and bool(extra.get("keeps_blanks"))

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
            if isinstance(taken, float) and not math.isfinite(taken):
                raise ValueError("must be finite")
        except ValueError:
            default = field.get_default(call_default_factory=True, validated_data={})
            taken = "the default" if default is None else repr(default)
            log.warning("%s: bad value %r, taking %s", str(info.field_name).upper(), value, taken)
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
            lines = [cls._told(item, given) for item in error.errors()]
            raise SettingsError("bad setting: " + "; ".join(lines)) from None
        except (OSError, UnicodeDecodeError) as error:
            raise SettingsError(f".env cannot be read: {error}") from None

    @classmethod
    def _told(cls, item: ErrorDetails, given: dict[str, Any]) -> str:
        field = str(item["loc"][0]) if item["loc"] else ""
        name = field.upper() or cls.__name__
        is_secret = field in cls.model_fields and not cls.model_fields[field].repr
        got = "" if is_secret else f", got {item['input']!r}"
        return f"{name}: {item['msg']}{got} (from {_source(name, given)})"


def _source(name: str, given: dict[str, Any]) -> str:
    if name.lower() in given:
        return "command line"
    if any(key.upper() == name and value.strip() for key, value in os.environ.items()):
        return "environment"
    return ".env"


def unknown_names(
    env_file: Path = Path(".env"), known_file: Path = Path(".env.example")
) -> list[str]:
    """Lines that name what stands in `.env` and no process reads (likely misspelt), by the list in `.env.example`."""
    if not (env_file.is_file() and known_file.is_file()):
        return []
    set_here = {name.upper() for name in dotenv_values(env_file, interpolate=False)}
    unknown = sorted(set_here - _listed(known_file))
    return [f"{name} in {env_file} is no setting of Sluice" for name in unknown]


def _listed(path: Path) -> set[str]:
    """Names in lines such as `# LEASE_S=15`, with or without the `#`."""
    return set(re.findall(r"^(?:# ?)?([A-Z][A-Z0-9_]*)=", path.read_text("utf-8"), re.MULTILINE))


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


TEN_YEARS_S = 315_360_000
# The queue clock leaves out only pauses of the broker of more than 5 s; a worker beats at least once a second.
SAFE_LEASE_S = 6.0


class QueueSettings(Settings):
    """What both sides of the queue must agree on. Times in seconds."""

    redis_url: str = Field("redis://127.0.0.1:6379/0", repr=False)
    queue_name: Annotated[str, AfterValidator(_slug)] = "default"
    shards: Annotated[int, Field(ge=1, le=64)] = 1
    lease_s: Annotated[float, Field(ge=2, le=600)] = 15.0
    max_crashes: Annotated[int, Field(ge=0, le=10)] = 2
    max_attempts: Annotated[int, Field(ge=1, le=20)] = 3
    result_record_ttl_s: Annotated[float, Field(ge=1, le=TEN_YEARS_S)] = 86_400.0
    result_body_ttl_s: Annotated[float, Field(ge=1, le=TEN_YEARS_S)] = 3_600.0
    dead_letters_max_bytes: Annotated[int, Field(ge=0)] = 64 << 20
    broker_budget_s: Annotated[float, Field(gt=0, le=30)] = 2.5
    durability: Literal["none", "aof"] = "none"
    require_persistence: bool = False

    @property
    def lease_warning(self) -> str | None:
        """What a short lease costs; None for one that outlasts every pause of the broker that counts as time."""
        if self.lease_s >= SAFE_LEASE_S:
            return None
        return (
            f"LEASE_S={self.lease_s:g}: a broker that stands still for 1 to 5 s may take running work from this "
            f"worker, and count it as a crash; from {SAFE_LEASE_S:g} s on it does not"
        )
