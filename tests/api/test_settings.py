"""What stops the start, what only warns, and what is never shown."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from api.settings import END_MARKERS, PUBLIC_VARIABLES, ApiSettings, public_variables
from shared.errors import SettingsError
from tests.api.conftest import Load


def test_defaults_start_on_loopback_without_a_key(load_settings: Load) -> None:
    settings = load_settings()
    assert (settings.host, settings.port, settings.api_keys) == ("127.0.0.1", 8000, ())
    assert settings.limits["QUEUE_CAP"] == 10_000
    assert settings.limits["LIST_LIMIT"] == 1_024
    assert settings.limits["MAX_BODY_BYTES"] == 10_485_760


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.4", "example.org"])
def test_another_address_needs_keys_or_an_explicit_yes(host: str, load_settings: Load) -> None:
    with pytest.raises(SettingsError, match=r"API_KEYS.*ALLOW_ANONYMOUS=1"):
        load_settings({"HOST": host})
    assert load_settings({"HOST": host, "ALLOW_ANONYMOUS": "1"}).allow_anonymous
    assert len(load_settings({"HOST": host, "API_KEYS": "a, b,"}).api_keys) == 2


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1", "localhost"])
def test_loopback_needs_none(host: str, load_settings: Load) -> None:
    assert load_settings({"HOST": host}).is_loopback


def test_results_must_outlive_the_longest_wait_twice(load_settings: Load) -> None:
    with pytest.raises(SettingsError, match="RESULT_RECORD_TTL_S"):
        load_settings({"RESULT_RECORD_TTL_S": "7000"})
    assert load_settings({"RESULT_RECORD_TTL_S": "7260"}).result_record_ttl_s == 7260


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("QUEUE_CAP", "many"),
        ("PORT", "70000"),
        ("SYNC_WAIT_S", "nan"),
        ("MAX_QUEUE_S", "0"),
        ("MAX_TOKENS_CAP", "99999999999"),
        ("DEFAULT_MAX_TOKENS", "99999999999"),
    ],
)
def test_a_bad_value_of_ours_stops_the_start_and_is_named(
    name: str, value: str, load_settings: Load
) -> None:
    with pytest.raises(SettingsError, match=name) as caught:
        load_settings({name: value})
    assert "environment" in caught.value.message


@pytest.mark.parametrize(
    ("name", "value", "taken"),
    [
        ("TEMPERATURE", "hot", 0.0),
        ("TEMPERATURE", "50", 0.0),
        ("TEMPERATURE", "nan", 0.0),
        ("TOP_P", "0", 1.0),
        ("REPETITION_PENALTY", "inf", 1.05),
        ("OUTPUT_MAX_SENTENCES", "2.0", 6),
        ("TOP_K", "99999999999", 1),
        ("TOP_K", "-2", 1),
        ("FREQUENCY_PENALTY", "2.5", 0.1),
        ("STOP_STRINGS", ",".join(f"s{i}" for i in range(17)), END_MARKERS),
        ("STOP_STRINGS", "x" * 257, END_MARKERS),
        ("STOP_STRINGS", "half \udcff", END_MARKERS),
        ("STOP_STRINGS", "[1]", END_MARKERS),
        ("STOP_STRINGS", "[", END_MARKERS),
    ],
)
def test_a_bad_value_of_the_seed_warns_and_takes_the_default(
    name: str, value: str, taken: object, load_settings: Load, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        assert getattr(load_settings({name: value}), name.lower()) == taken
    assert name in caplog.text


def test_an_empty_line_as_a_stop_takes_one_place_of_the_stop_strings(
    load_settings: Load, caplog: pytest.LogCaptureFixture
) -> None:
    sixteen = {"STOP_STRINGS": ",".join(f"s{i}" for i in range(16))}
    assert len(load_settings(sixteen).stops) == 16
    assert not caplog.text
    settings = load_settings({**sixteen, "STOP_ON_DOUBLE_NEWLINE": "1"})
    assert settings.stops == ("\n\n", *END_MARKERS)
    assert "STOP_STRINGS" in caplog.text


def test_blank_is_absent(load_settings: Load) -> None:
    settings = load_settings({"MAX_NEW_TOKENS": "", "QUEUE_CAP": "", "STOP_STRINGS": ""})
    assert (settings.max_new_tokens, settings.queue_cap) == (32, 10_000)
    assert settings.stop_strings == END_MARKERS


@pytest.mark.parametrize(
    ("variables", "stops"),
    [
        ({}, END_MARKERS),
        ({"STOP_STRINGS": " a , b ,,"}, ("a", "b")),
        ({"STOP_STRINGS": " , "}, END_MARKERS),
        ({"STOP_STRINGS": '["a,b", "\\n"]'}, ("a,b", "\n")),
        ({"STOP_ON_DOUBLE_NEWLINE": "yes"}, ("\n\n", *END_MARKERS)),
    ],
)
def test_stop_strings(
    variables: dict[str, str], stops: tuple[str, ...], load_settings: Load
) -> None:
    assert load_settings(variables).stops == stops


def test_hard_budget_follows_the_code_budget_until_set(load_settings: Load) -> None:
    assert load_settings({"MAX_NEW_TOKENS_CODE": "250"}).hard_budget == 250
    both = {"MAX_NEW_TOKENS_CODE": "250", "MAX_NEW_TOKENS_CODE_HARD": "100"}
    assert load_settings(both).hard_budget == 100


def test_a_neutral_profile_says_which_variables_it_leaves_idle(
    load_settings: Load, caplog: pytest.LogCaptureFixture
) -> None:
    variables = {"TEMPERATURE": "0.3", "SYSTEM_PROMPT": "x", "OUTPUT_MAX_SENTENCES": "3"}
    assert load_settings(variables).built_in_system_prompt == "x"
    assert not caplog.text
    settings = load_settings({**variables, "PROFILE": "neutral"})
    assert settings.built_in_system_prompt == ""
    assert caplog.messages == ["without effect in PROFILE=neutral: TEMPERATURE, SYSTEM_PROMPT"]
    with pytest.raises(SettingsError, match="PROFILE"):
        load_settings({"PROFILE": "wild"})


@pytest.mark.parametrize(
    ("name", "bad", "default"),
    [
        ("MAX_NEW_TOKENS", "many", 32),
        ("MAX_NEW_TOKENS_CODE", "1.5", 192),
        ("MAX_NEW_TOKENS_CODE_HARD", "x", None),
        ("MAX_NEW_TOKENS_CODE_SOFT", "0x20", 64),
        ("HARD_CODE_MIN_HITS", "two", 1),
        ("LONG_ANSWER_MIN_HITS", "", 1),
        ("TEMPERATURE", "", 0.0),
        ("TOP_K", "1.0", 1),
    ],
)
def test_a_bad_or_blank_number_of_the_seed_is_its_default(
    name: str, bad: str, default: object, load_settings: Load
) -> None:
    assert getattr(load_settings({name: bad}), name.lower()) == default


@pytest.mark.parametrize(
    ("name", "low", "high"),
    [
        ("MAX_NEW_TOKENS", 1, 4096),
        ("MAX_NEW_TOKENS_CODE", 1, 4096),
        ("MAX_NEW_TOKENS_CODE_HARD", 1, 4096),
        ("MAX_NEW_TOKENS_CODE_SOFT", 1, 4096),
        ("HARD_CODE_MIN_HITS", 1, 5),
        ("LONG_ANSWER_MIN_HITS", 1, 5),
        ("OUTPUT_MAX_SENTENCES", 1, 12),
    ],
)
def test_numbers_of_the_seed_are_clamped(
    name: str, low: int, high: int, load_settings: Load
) -> None:
    for given, taken in ((-7, low), (0, low), (low, low), (high, high), (10**6, high)):
        assert getattr(load_settings({name: str(given)}), name.lower()) == taken


@pytest.mark.parametrize(
    ("name", "default"),
    [
        ("DISABLE_TOKEN_ROUTING", False),
        ("LONG_ANSWER_ENABLE_DEFAULT", True),
        ("LOG_TOKEN_ROUTING", False),
        ("STOP_ON_DOUBLE_NEWLINE", False),
        ("OUTPUT_TRIM_EXAMPLES", True),
    ],
)
def test_switches_of_the_seed_know_the_same_words(
    name: str, default: bool, load_settings: Load
) -> None:
    for word in ("1", "true", " YES ", "y", "On"):
        assert getattr(load_settings({name: word}), name.lower()) is True
    for word in ("0", "false", "no", "2", "maybe"):
        assert getattr(load_settings({name: word}), name.lower()) is False
    for word in ("", "  "):
        assert getattr(load_settings({name: word}), name.lower()) is default


@pytest.mark.parametrize(
    "name", ["CODE_QUESTION_KEYWORDS", "HARD_CODE_QUESTION_KEYWORDS", "LONG_ANSWER_KEYWORDS"]
)
def test_keywords_are_trimmed_lowered_and_counted_once(name: str, load_settings: Load) -> None:
    words = getattr(load_settings({name: " Foo ,, bar baz,foo, "}), name.lower())
    assert words == ("foo", "bar baz")


def test_keys_are_kept_as_digests_and_shown_nowhere(load_settings: Load) -> None:
    settings = load_settings({"API_KEYS": "open-sesame", "ADMIN_TOKEN": "very-secret"})
    shown = f"{settings!r} {settings}"
    assert "open-sesame" not in shown + repr(settings.api_keys)
    assert "very-secret" not in shown


def test_public_variables_are_those_that_are_set(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in (*PUBLIC_VARIABLES, *(n.upper() for n in ApiSettings.model_fields)):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SERVE_VLLM_ENGINE", " V1 ")
    monkeypatch.setenv("ADMIN_TOKEN", "very-secret")
    env_file = tmp_path / ".env"
    env_file.write_text("DTYPE=float32\nSERVE_VLLM_ENGINE=v0\nAPI_KEYS=open-sesame\n")
    assert public_variables(env_file) == {"SERVE_VLLM_ENGINE": " V1 ", "DTYPE": "float32"}
    assert len(PUBLIC_VARIABLES) == 28
