"""The further numbers of a difference (``ComparedRow.details``) in a few words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from trueline.render.wording import number

_COUNTS = {"nan": "NaN", "pos_inf": "+inf", "neg_inf": "−inf", "zero": "zeros", "subnormal": "subnormals"}
_VALUES = {"min": "smallest", "max": "largest", "sum": "sum", "sum_sq": "sum of squares"}
"""Statistics, each a pair: of the run and of the reference; in the order in which they are shown."""

_MAX_PAIRS = 4


def details_text(details: Mapping[str, Any] | None) -> str:
    """The most relevant numbers in ``details``: of elements where values were stored, else statistics that differ."""
    if not details:
        return ""
    return "; ".join([*_elements(details), *_statistics(details)])


def place_of(details: Mapping[str, Any] | None) -> str:
    """Where in the tensor the difference is, "" where it is everywhere or not known."""
    where = (details or {}).get("where")
    return where if isinstance(where, str) else ""


def _elements(details: Mapping[str, Any]) -> list[str]:
    parts: list[str] = []
    if details.get("nonfinite"):
        parts.append(f"{number(details['nonfinite'])} elements are NaN or infinite in one run only")
    if _is_number(details.get("max_abs")):
        parts.append(f"at most {number(details['max_abs'], 3)}{_at(details)}")
    if _is_number(details.get("differ_frac")):
        beyond = details.get("beyond_frac")
        also = f", {_percent(beyond)} by more than a rounding" if _is_number(beyond) else ""
        parts.append(f"{_percent(details['differ_frac'])} of elements differ{also}")
    if _is_number(details.get("ulp_p50")) and _is_number(details.get("ulp_max")):
        parts.append(f"by {number(details['ulp_p50'], 2)} ULP in the median, {number(details['ulp_max'], 2)} at most")
    if _is_number(details.get("cosine")):
        parts.append(f"cosine {_cosine(details['cosine'])}")
    return parts


def _at(details: Mapping[str, Any]) -> str:
    at, values = details.get("max_abs_at"), details.get("max_abs_values")
    where = f" at [{', '.join(map(str, at))}]" if isinstance(at, Sequence) and len(at) else ""
    if isinstance(values, Sequence) and len(values) == 2:
        where += f" ({number(values[0])}, in REF {number(values[1])})"
    return where


def _statistics(details: Mapping[str, Any]) -> list[str]:
    """Counts that differ first, as one NaN says more than a sum."""
    parts = [
        f"{words} {number(pair[0], 6)}, in REF {number(pair[1], 6)}"
        for name, words in {**_COUNTS, **_VALUES}.items()
        if isinstance(pair := details.get(name), Sequence) and len(pair) == 2 and not isinstance(pair, str)
    ]
    return parts[:_MAX_PAIRS]


def _cosine(value: float) -> str:
    """Near 1, how near: ``1 − 3e−7``."""
    return f"1 − {number(1 - value, 2)}" if 0.99 < value < 1 else number(value, 4)


def _percent(fraction: float) -> str:
    return f"{number(100 * fraction, 2)} %"


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float)
