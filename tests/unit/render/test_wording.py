"""Numbers, ranks and foreign text read as they should."""

import math

import pytest

from trueline.render.wording import false_alarm, number, seconds_words, steps_words, visible
from trueline.schema.finding import LEAST_PROBABILITY


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "–"),
        (math.nan, "NaN"),
        (math.inf, "inf"),
        (-math.inf, "−inf"),
        (0.0, "0"),
        (1.0, "1"),
        (0.0886, "0.0886"),
        (0.00123456, "0.001235"),
        (-2.5, "−2.5"),
        (12345.6, "12,346"),
        (3.2e-9, "3.2e−9"),
        (2.5e7, "2.5e7"),
    ],
)
def test_number_is_named_rounded_and_grouped(value: float | None, text: str) -> None:
    assert number(value) == text


@pytest.mark.parametrize("rate", [3.14e-9, 1e-6, 0.0449, 9.99e-4, 0.5])
def test_false_alarm_bound_is_never_rounded_down(rate: float) -> None:
    shown = float(false_alarm(rate).removeprefix("≤ ").replace("−", "-"))

    assert rate <= shown * (1 + 1e-9)
    assert shown <= 1.11 * rate


def test_a_bound_that_is_smaller_than_any_number_is_no_contradiction() -> None:
    assert false_alarm(LEAST_PROBABILITY) == "< 1e−300"
    assert false_alarm(1e-299) == "≤ 1e−299"


def test_exact_contradiction_has_no_false_alarms_and_an_unknown_rate_says_so() -> None:
    assert false_alarm(0.0) == "none: exact"
    assert false_alarm(None) == "not stated"


def test_steps_name_one_a_span_or_none() -> None:
    assert [steps_words(None, None), steps_words(7, None), steps_words(7, 7), steps_words(0, 49)] == [
        "",
        "step 7",
        "step 7",
        "steps 0–49",
    ]


def test_durations_take_the_units_that_matter() -> None:
    assert [seconds_words(0.824), seconds_words(185), seconds_words(8075)] == ["0.82 s", "3 min 5 s", "2 h 14 min"]
    assert [seconds_words(float("nan")), seconds_words(float("inf"))] == ["NaN s", "inf s"]


def test_characters_that_hide_or_turn_text_become_visible() -> None:
    assert visible("safe\u202etxt.exe\x00\ud800") == "safe\ufffdtxt.exe\ufffd\ufffd"
    assert visible("Zeile\n\tzwei 漢字 🙂") == "Zeile\n\tzwei 漢字 🙂"
