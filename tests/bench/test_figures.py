"""Figures: the line that is printed, percentiles, and when a target is met."""

from __future__ import annotations

import json

import pytest

from bench import figures
from bench.figures import Figure

KEYS = ["name", "value", "unit", "peer", "ratio", "target", "ok"]


def test_a_figure_is_one_json_object_on_a_line() -> None:
    line = figures.at_least_of_peer("engine.tokens_per_s", 95.0, "tokens/s", 100.0, 0.9).line
    assert "\n" not in line
    shown = json.loads(line)
    assert list(shown) == KEYS
    assert shown == {
        "name": "engine.tokens_per_s",
        "value": 95.0,
        "unit": "tokens/s",
        "peer": 100.0,
        "ratio": 0.95,
        "target": "at least 0.9 of the peer",
        "ok": True,
    }


def test_a_value_is_shown_with_as_many_digits_as_it_is_worth() -> None:
    assert json.loads(figures.plain("x", 1234.5678, "ms").line)["value"] == 1235.0
    assert json.loads(figures.plain("x", 0.00123456, "ms").line)["value"] == 0.001235


@pytest.mark.parametrize(
    ("figure", "ok"),
    [
        (figures.at_most("x", 1.5, "ms", 1.5), True),
        (figures.at_most("x", 1.501, "ms", 1.5), False),
        (figures.at_least("x", 200, "requests", 200), True),
        (figures.at_least("x", 199, "requests", 200), False),
        (figures.at_least_of_peer("x", 90.0, "tokens/s", 100.0, 0.9), True),
        (figures.at_least_of_peer("x", 89.9, "tokens/s", 100.0, 0.9), False),
        (figures.at_least_of_peer("x", 89.9, "tokens/s", 0.0, 0.9), False),
        (figures.plain("x", 1.0, "ms", 2.0), None),
    ],
)
def test_a_target_is_met_or_not(figure: Figure, ok: bool | None) -> None:
    assert figure.ok is ok


def test_all_are_shown_though_one_misses_its_target(capsys: pytest.CaptureFixture[str]) -> None:
    missed = figures.at_most("a", 2.0, "ms", 1.0)
    assert figures.show([missed, figures.plain("b", 1.0, "ms")]) is False
    assert [json.loads(line)["name"] for line in capsys.readouterr().out.splitlines()] == ["a", "b"]
    assert figures.show([figures.plain("b", 1.0, "ms")]) is True


@pytest.mark.parametrize(
    ("percent", "value"), [(50, 5.0), (90, 9.0), (99, 10.0), (100, 10.0), (1, 1.0)]
)
def test_a_percentile_is_one_of_the_values(percent: float, value: float) -> None:
    assert figures.percentile([float(n) for n in range(10, 0, -1)], percent) == value


def test_the_median_of_one_value_is_that_value() -> None:
    assert figures.median([3.0]) == 3.0
