"""Numbers, ranks, steps and foreign text as a reader meets them on the page."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence

ABSENT = "–"
"""What stands where nothing was measured."""

_UNPRINTABLE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def visible(value: object) -> object:
    """``value``, with control, direction-changing and unencodable characters of a text replaced by U+FFFD.

    A file name or a flag of a Run may hold any of them; escaping alone would leave a text that reads backwards.
    """
    if isinstance(value, str) and _UNPRINTABLE.search(value):
        return type(value)(_UNPRINTABLE.sub("\ufffd", value))
    return value


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


def reading(value: float | None, decimals: int | None = None) -> str:
    """``value`` with ``decimals``, or else four significant digits, so that a read-out keeps its width."""
    if decimals is not None and value is not None and math.isfinite(value):
        return f"{value:.{decimals}f}".replace("-", "−")
    if value is None or not math.isfinite(value) or value == 0 or not 1e-3 <= abs(value) < 1e3:
        return number(value)
    return f"{value:#.4g}".removesuffix(".").replace("-", "−")


def false_alarm(rate: float | None) -> str:
    """How often a healthy Run would yield a Finding: a bound, rounded up, or that the evidence is a contradiction."""
    if rate is None:
        return "not stated"
    if not 0 < rate < 1:
        return "none: exact" if rate == 0 else number(rate, 3)
    unit = 10.0 ** (math.floor(math.log10(rate)) - 1)
    return f"≤ {number(math.ceil(rate / unit * (1 - 1e-9)) * unit, 3)}"


def listed(items: Sequence[str], last: str = "and") -> str:
    """``a``, ``a and b``, ``a, b and c``."""
    if len(items) < 2:
        return "".join(items)
    return f"{', '.join(items[:-1])} {last} {items[-1]}"


def counted(count: int, noun: str, plural: str | None = None) -> str:
    """``1 check``, ``2 checks``, ``1,500 steps``."""
    return f"{count:,} {noun if count == 1 else plural or noun + 's'}"


def spans(numbers: Iterable[int]) -> list[str]:
    """Whole numbers with neighbours joined: 0, 1, 2, 5 → ``0–2``, ``5``."""
    runs: list[list[int]] = []
    for value in sorted(set(numbers)):
        if runs and value == runs[-1][1] + 1:
            runs[-1][1] = value
        else:
            runs.append([value, value])
    texts: list[str] = []
    for first, last in runs:
        joint = "–" if last - first > 1 else ", "
        texts.append(str(first) if first == last else f"{first}{joint}{last}")
    return texts


def ranks_words(ranks: Sequence[int], all_ranks: Sequence[int] = ()) -> str:
    """``rank 3``, ``ranks 0 and 1``, ``ranks 0–5 and 7``, or ``all 4 ranks`` for all of three or more."""
    if not ranks:
        return ""
    if len(ranks) > 2 and set(ranks) == set(all_ranks):
        return f"all {len(ranks)} ranks"
    parts = [part for span in spans(ranks) for part in span.split(", ")]
    return f"{'rank' if len(set(ranks)) == 1 else 'ranks'} {listed(parts)}"


def steps_words(first: int | None, last: int | None) -> str:
    """``step 7``, ``steps 0–49``, or nothing where no step is named."""
    if first is None:
        return ""
    return f"step {first}" if last is None or last == first else f"steps {first}–{last}"


def seconds_words(seconds: float) -> str:
    """A duration in the largest two units that matter: ``0.82 s``, ``42 s``, ``3 min 5 s``, ``2 h 14 min``."""
    if seconds < 60:
        return f"{number(seconds, 2)} s"
    if seconds < 3600:
        return f"{int(seconds // 60)} min {int(seconds % 60)} s"
    return f"{int(seconds // 3600)} h {int(seconds % 3600 // 60)} min"


def clipped(text: str, length: int) -> str:
    """``text``, or its beginning and an ellipsis, ``length`` characters in all."""
    return text if len(text) <= length else text[: length - 1] + "…"


def by_reason(left_out: Iterable[tuple[str, str]]) -> list[tuple[list[str], str]]:
    """(what, why) with all that has the same reason together."""
    together: dict[str, list[str]] = {}
    for what, why in left_out:
        together.setdefault(why, []).append(what)
    return [(names, why) for why, names in together.items()]
