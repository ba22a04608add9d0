"""Settings: where a value comes from, and what a bad one does."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import pytest
from pydantic import Field

from shared.errors import SettingsError
from shared.settings import LogSettings, QueueSettings, Settings, seed, unknown_names

WriteEnv = Callable[..., Path]


class Seeds(Settings):
    """Variables as the first seed has them."""

    max_new_tokens: int = seed(32, clamp=(1, 4096))
    hard_budget: int | None = seed(None, clamp=(1, 4096))
    temperature: Annotated[float, Field(ge=0, le=2)] = seed(0.5)
    scale: float = seed(1.0, clamp=(0.0, 2.0))
    batch_mode: bool = seed(False)
    long_answers: bool = seed(True)


class Secrets(Settings):
    pin: int = Field(0, repr=False)


@pytest.fixture(autouse=True)
def _empty_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No `.env` and no variable of ours."""
    monkeypatch.chdir(tmp_path)
    kinds = (LogSettings, QueueSettings, Seeds, Secrets)
    ours = {name.upper() for kind in kinds for name in kind.model_fields}
    for name in [name for name in os.environ if name.upper() in ours]:
        monkeypatch.delenv(name)


@pytest.fixture
def dot_env(tmp_path: Path) -> WriteEnv:
    def write(*lines: str, name: str = ".env") -> Path:
        path = tmp_path / name
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
        return path

    return write


# --- where a value comes from


def test_defaults() -> None:
    assert QueueSettings.load().model_dump() == {
        "redis_url": "redis://127.0.0.1:6379/0",
        "queue_name": "default",
        "shards": 1,
        "lease_s": 15.0,
        "max_crashes": 2,
        "max_attempts": 3,
        "dead_letters_max_bytes": 64 << 20,
        "result_record_ttl_s": 86_400.0,
        "result_body_ttl_s": 3_600.0,
        "broker_budget_s": 2.5,
        "durability": "none",
        "require_persistence": False,
    }
    assert LogSettings.load().model_dump() == {"log_level": "info", "log_format": "text"}


def test_the_order_is_argument_environment_file_default(
    dot_env: WriteEnv, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert QueueSettings.load().lease_s == 15
    dot_env("LEASE_S=20")
    assert QueueSettings.load().lease_s == 20
    monkeypatch.setenv("LEASE_S", "30")
    assert QueueSettings.load().lease_s == 30
    assert QueueSettings.load(lease_s=40).lease_s == 40


def test_the_broker_is_named_by_redis_url(
    dot_env: WriteEnv, monkeypatch: pytest.MonkeyPatch
) -> None:
    dot_env("REDIS_URL=unix:///run/broker.sock?db=1")
    assert QueueSettings.load().redis_url == "unix:///run/broker.sock?db=1"
    monkeypatch.setenv("REDIS_URL", "rediss://user:pass@host:6380/2")
    assert QueueSettings.load().redis_url == "rediss://user:pass@host:6380/2"


@pytest.mark.parametrize("blank", ["", " ", "\t \n"])
def test_blank_is_absent_in_the_environment(
    blank: str, dot_env: WriteEnv, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LEASE_S", blank)
    monkeypatch.setenv("REDIS_URL", blank)
    monkeypatch.setenv("BATCH_MODE", blank)
    monkeypatch.setenv("LONG_ANSWERS", blank)
    assert QueueSettings.load().lease_s == 15
    assert QueueSettings.load().redis_url == "redis://127.0.0.1:6379/0"
    assert (Seeds.load().batch_mode, Seeds.load().long_answers) == (False, True)
    dot_env("LEASE_S=20")
    assert QueueSettings.load().lease_s == 20, "a blank variable hides no file"


@pytest.mark.parametrize(
    "line", ["LEASE_S=", "LEASE_S=   ", 'LEASE_S="  "', "LEASE_S=''", "LEASE_S"]
)
def test_blank_is_absent_in_the_file(line: str, dot_env: WriteEnv) -> None:
    dot_env(line, "MAX_CRASHES=5")
    settings = QueueSettings.load()
    assert (settings.lease_s, settings.max_crashes) == (15, 5)


def test_white_space_around_a_value_does_not_count(
    dot_env: WriteEnv, monkeypatch: pytest.MonkeyPatch
) -> None:
    dot_env('LOG_FORMAT=" json "', "  LOG_LEVEL =  debug   # why", "export QUEUE_NAME= qwen3-4b")
    monkeypatch.setenv("LEASE_S", " 20\n")
    monkeypatch.setenv("REDIS_URL", " redis://broker ")
    monkeypatch.setenv("MAX_NEW_TOKENS", " 64 ")
    monkeypatch.setenv("BATCH_MODE", " Yes ")
    logs, queue, seeds = LogSettings.load(), QueueSettings.load(), Seeds.load()
    assert (logs.log_format, logs.log_level) == ("json", "debug")
    assert (queue.queue_name, queue.lease_s, queue.redis_url) == ("qwen3-4b", 20, "redis://broker")
    assert (seeds.max_new_tokens, seeds.batch_mode) == (64, True)


def test_names_are_taken_in_any_case(dot_env: WriteEnv, monkeypatch: pytest.MonkeyPatch) -> None:
    dot_env("max_crashes=5")
    monkeypatch.setenv("Lease_S", "20")
    settings = QueueSettings.load()
    assert (settings.max_crashes, settings.lease_s) == (5, 20)


def test_settings_do_not_change_and_do_not_show_a_password() -> None:
    settings = QueueSettings.load(redis_url="redis://user:hunter2@host")
    assert "hunter2" not in repr(settings)
    assert "hunter2" not in str(settings)
    with pytest.raises(ValueError, match="frozen"):
        settings.lease_s = 20  # type: ignore[misc]


@pytest.mark.parametrize(("lease_s", "is_warned_of"), [(2, True), (5.9, True), (6, False)])
def test_a_lease_within_a_pause_that_the_queue_clock_does_not_see_is_warned_of(
    lease_s: float, is_warned_of: bool
) -> None:
    warning = QueueSettings.load(lease_s=lease_s).lease_warning
    assert (warning is not None) == is_warned_of


# --- a bad value of ours

BAD: list[tuple[type[Settings], str, str]] = [
    (QueueSettings, "LEASE_S", "soon"),
    (QueueSettings, "LEASE_S", "0.5"),
    (QueueSettings, "LEASE_S", "601"),
    (QueueSettings, "LEASE_S", "nan"),
    (QueueSettings, "MAX_CRASHES", "-1"),
    (QueueSettings, "MAX_CRASHES", "2.5"),
    (QueueSettings, "MAX_ATTEMPTS", "0"),
    (QueueSettings, "RESULT_RECORD_TTL_S", "0"),
    (QueueSettings, "RESULT_RECORD_TTL_S", "inf"),
    (QueueSettings, "RESULT_BODY_TTL_S", "nan"),
    (QueueSettings, "BROKER_BUDGET_S", "0"),
    (QueueSettings, "QUEUE_NAME", "Qwen"),
    (QueueSettings, "QUEUE_NAME", "a.b"),
    (QueueSettings, "QUEUE_NAME", "a{b}"),
    (QueueSettings, "QUEUE_NAME", "q" * 33),
    (QueueSettings, "QUEUE_NAME", "é"),
    (LogSettings, "LOG_LEVEL", "loud"),
    (LogSettings, "LOG_FORMAT", "xml"),
]


@pytest.mark.parametrize(("kind", "name", "value"), BAD)
def test_a_bad_value_stops_the_start_and_names_variable_and_source(
    kind: type[Settings],
    name: str,
    value: str,
    dot_env: WriteEnv,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(SettingsError) as stopped:
        kind.load(**{name.lower(): value})
    assert_told(stopped.value, name, value, "command line")

    path = dot_env(f"{name}={value}")
    with pytest.raises(SettingsError) as stopped:
        kind.load()
    assert_told(stopped.value, name, value, ".env")

    path.unlink()
    monkeypatch.setenv(name, value)
    with pytest.raises(SettingsError) as stopped:
        kind.load()
    assert_told(stopped.value, name, value, "environment")


def assert_told(error: SettingsError, name: str, value: str, source: str) -> None:
    text = str(error)
    assert text.startswith(f"bad setting: {name}: ")
    assert f"got {value!r}" in text
    assert text.endswith(f"(from {source})")
    assert "\n" not in text


def test_a_blank_variable_is_not_named_as_the_source(
    dot_env: WriteEnv, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LEASE_S", "  ")
    dot_env("LEASE_S=soon")
    with pytest.raises(SettingsError, match=r"\(from \.env\)"):
        QueueSettings.load()


def test_all_bad_values_are_told_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEASE_S", "soon")
    monkeypatch.setenv("MAX_CRASHES", "many")
    with pytest.raises(SettingsError, match=r"LEASE_S: .*; MAX_CRASHES: "):
        QueueSettings.load()


def test_a_bad_secret_is_named_and_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIN", "hunter2")
    with pytest.raises(SettingsError, match=r"PIN: .*\(from environment\)") as stopped:
        Secrets.load()
    assert "hunter2" not in str(stopped.value)


def test_a_file_that_cannot_be_read_stops_the_start(tmp_path: Path) -> None:
    (tmp_path / ".env").write_bytes(b"LEASE_S=\xff\xfe\n")
    with pytest.raises(SettingsError, match=r"\.env cannot be read"):
        QueueSettings.load()


def test_a_folder_named_dot_env_is_no_file(tmp_path: Path) -> None:
    (tmp_path / ".env").mkdir()
    assert QueueSettings.load().lease_s == 15


# --- a bad value of the first seed


@pytest.mark.parametrize(
    ("name", "value", "default"),
    [
        ("MAX_NEW_TOKENS", "many", 32),
        ("MAX_NEW_TOKENS", "2.5", 32),
        ("MAX_NEW_TOKENS", "nan", 32),
        ("MAX_NEW_TOKENS", "9" * 5000, 32),
        ("HARD_BUDGET", "x", None),
        ("TEMPERATURE", "3", 0.5),
        ("TEMPERATURE", "nan", 0.5),
        ("SCALE", "nan", 1.0),
        ("SCALE", "inf", 1.0),
    ],
)
def test_a_bad_seed_value_warns_and_the_default_is_taken(
    name: str,
    value: str,
    default: Any,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setenv(name, value)
    settings = Seeds.load()
    assert getattr(settings, name.lower()) == default
    (said,) = [r for r in caplog.records if r.levelno == logging.WARNING]
    taken = "the default" if default is None else repr(default)
    assert said.getMessage() == f"{name}: bad value {value!r}, taking {taken}"


@pytest.mark.parametrize(
    ("value", "taken"), [("0", 1), ("-5", 1), ("1", 1), ("4096", 4096), ("9999", 4096)]
)
def test_a_seed_value_out_of_range_is_clamped(
    value: str, taken: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("MAX_NEW_TOKENS", value)
    monkeypatch.setenv("HARD_BUDGET", value)
    settings = Seeds.load()
    assert (settings.max_new_tokens, settings.hard_budget) == (taken, taken)
    assert type(settings.max_new_tokens) is int
    assert not caplog.records


@pytest.mark.parametrize(
    ("value", "taken"),
    [
        *((word, True) for word in ("1", "true", "TRUE", "Yes", "y", "on")),
        *((word, False) for word in ("0", "false", "no", "off", "2", "maybe")),
    ],
)
def test_a_seed_switch_is_on_for_these_words_alone(
    value: str, taken: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BATCH_MODE", value)
    monkeypatch.setenv("LONG_ANSWERS", value)
    settings = Seeds.load()
    assert (settings.batch_mode, settings.long_answers) == (taken, taken)


# --- unknown names


def test_unknown_names_in_the_file_are_told_and_left_to_each_process_to_say(
    dot_env: WriteEnv, caplog: pytest.LogCaptureFixture
) -> None:
    known = dot_env("# Seconds", "# LEASE_S=15", "#QUEUE_NAME=", "LOG_LEVEL=info", name="known")
    path = dot_env(
        "# A_COMMENT=1",
        "LEASE_S=20",
        "queue_name=a",
        "export LOG_LEVEL=debug",
        "LEASES_S=20",
        "lease_secs=20",
        "export TYPO=1",
        'LONG="first',
        'INSIDE=second"',
        "BARE",
    )
    unknown = ["BARE", "LEASES_S", "LEASE_SECS", "LONG", "TYPO"]
    told = [f"{name} in {path} is no setting of Sluice" for name in unknown]
    assert unknown_names(path, known) == told
    assert not caplog.records


def test_without_either_file_nothing_is_unknown(dot_env: WriteEnv, tmp_path: Path) -> None:
    path = dot_env("TYPO=1")
    assert unknown_names(path, tmp_path / "none") == []
    assert unknown_names(tmp_path / "none", path) == []
    assert unknown_names() == []


def test_an_unknown_name_stops_nothing(dot_env: WriteEnv) -> None:
    dot_env("TYPO=1", "LEASE_S=20")
    assert QueueSettings.load().lease_s == 20
