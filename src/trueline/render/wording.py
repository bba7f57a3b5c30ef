"""Numbers, ranks, steps and foreign text as a reader meets them on the page."""

from __future__ import annotations

import math
import re

from trueline.schema.finding import LEAST_PROBABILITY

ABSENT = "–"
"""What stands where nothing was measured."""

UNPRINTABLE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""Characters that steer a terminal, change the direction of text, or end a line without being seen to."""


def visible(value: object) -> object:
    """``value``, with control, direction-changing and unencodable characters of a text replaced by U+FFFD.

    A file name or a flag of a Run may hold any of them; escaping alone would leave a text that reads backwards.
    """
    if isinstance(value, str) and UNPRINTABLE.search(value):
        return type(value)(UNPRINTABLE.sub("\ufffd", value))
    return value


def one_line(text: str) -> str:
    """A name, or what else has no lines, as ``visible`` makes it, and in one line."""
    return str(visible(text)).replace("\n", "\ufffd").replace("\t", " ")


def number(value: float | None, digits: int = 4) -> str:
    """``value`` with ``digits`` significant digits; NaN and infinities by name, ``None`` as a dash."""
    if value is None:
        return ABSENT
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "inf" if value > 0 else "−inf"
    if value == 0:
        return "0"
    if 1e-3 <= abs(value) < 1e6:
        whole = len(str(int(abs(value)))) if abs(value) >= 1 else 0
        text = f"{value:,.0f}" if whole >= digits else f"{value:.{digits}g}"
    else:
        mantissa, exponent = f"{value:.{max(digits - 2, 0)}e}".split("e")
        if "." in mantissa:
            mantissa = mantissa.rstrip("0").rstrip(".")
        text = f"{mantissa}e{int(exponent)}"
    return text.replace("-", "−")


def false_alarm(rate: float | None) -> str:
    """How often a healthy Run would yield a Finding: a bound, rounded up, or that the evidence is a contradiction."""
    if rate is None:
        return "not stated"
    if not 0 < rate < 1:
        return "none: exact" if rate == 0 else number(rate, 3)
    if rate <= LEAST_PROBABILITY:
        return f"< {number(LEAST_PROBABILITY)}"
    unit = 10.0 ** (math.floor(math.log10(rate)) - 1)
    return f"≤ {number(math.ceil(rate / unit * (1 - 1e-9)) * unit, 3)}"


def span(first: int | None, last: int | None) -> str:
    """``7``, ``0–49``, or nothing where no step is named."""
    if first is None:
        return ""
    return str(first) if last is None or last == first else f"{first}–{last}"


def steps_words(first: int | None, last: int | None) -> str:
    """``step 7``, ``steps 0–49``, or nothing where no step is named."""
    return "" if first is None else f"step{'' if last in (None, first) else 's'} {span(first, last)}"


def seconds_words(seconds: float) -> str:
    """A duration in the largest two units that matter: ``0.82 s``, ``42 s``, ``3 min 5 s``, ``2 h 14 min``; NaN and
    infinities by name.
    """
    if seconds < 60 or not math.isfinite(seconds):
        return f"{number(seconds, 2)} s"
    if seconds < 3600:
        return f"{int(seconds // 60)} min {int(seconds % 60)} s"
    return f"{int(seconds // 3600)} h {int(seconds % 3600 // 60)} min"
