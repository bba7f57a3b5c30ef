"""Evidence of a Finding as a reader meets it: labelled in words, rounded, and nothing that is empty or said elsewhere.

`trueline check --json` has all of it, under the names that programs use.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from trueline.render.wording import number
from trueline.schema.text.words import clipped

_MAX_ENTRIES = 16
_MAX_VALUE = 400
"""Entries and characters shown."""

_LABELS: dict[str, str] = {
    "log_height": "odds against chance, reached (natural log)",
    "threshold": "odds against chance, needed (natural log)",
    "chance_bound": "probability by chance, at most",
    "chance": "probability by chance",
    "num_compared": "ranks compared",
    "compared": "ranks compared",
    "num_workers": "ranks",
    "decided_by": "decided by",
    "undecided": "undecided which rank it is",
    "memory": "autocorrelation time (steps)",
    "memory_steps": "steps over which values are correlated",
    "moved": "groups that moved",
    "noise_factor": "variance of the update, times that of equal counts",
    "shares": "share of each rank",
    "norm_slope": "slope of log gradient norm over log count, and its 95 % interval",
    "loss_slope": "slope of loss over log count, and its 95 % interval",
    "averaging": "how ranks are weighted",
    "scale_because": "why it is no scale",
    "num_steps": "steps",
    "num_spikes": "jumps",
    "spikes": "jumps",
    "fold_per_layer": "growth a layer",
    "num_propagated": "calls that passed it on",
    "num_absorbed": "calls that absorbed it",
    "num_other_origins": "other origins",
    "num_rows": "values",
    "counts": "values that are not finite",
    "pos_inf": "+inf",
    "neg_inf": "−inf",
    "nan": "NaN",
    "log_p": "probability in a healthy run (natural log)",
    "params": "parameters",
    "hooks": "communication hooks",
}
"""Of other keys the underscores go, and ``num_`` at their beginning."""
_ELSEWHERE = frozenset({"interval", "interval_of", "crossed_step", "growth", "kind", "ongoing"})
"""What other columns and the claim show."""


def evidence_words(evidence: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    """(label, value) of each entry that is not empty, the first sixteen and how many follow."""
    words = [
        (label(str(key)), _text(value)) for key, value in evidence.items() if key not in _ELSEWHERE and _says(value)
    ]
    entries = [(key, text) for key, text in words if text]
    more = len(entries) - _MAX_ENTRIES
    return tuple(entries if more <= 0 else [*entries[:_MAX_ENTRIES], ("and", f"{more} more")])


def label(key: str) -> str:
    """``key`` in words."""
    return _LABELS.get(key) or key.removeprefix("num_").replace("_", " ")


def _says(value: Any) -> bool:
    """True if there is anything to read; a zero is, and "no" is what goes without saying."""
    return value is not None and value is not False and (isinstance(value, int | float) or bool(value))


def _text(value: Any) -> str:
    return clipped(_plain(value), _MAX_VALUE)


def _plain(value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return number(value)
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, Mapping):
        pairs = cast(Mapping[Any, Any], value).items()
        return ", ".join(f"{label(str(key))}: {_plain(element)}" for key, element in pairs if _says(element))
    if isinstance(value, Sequence) and not isinstance(value, str):
        items = cast(Sequence[Any], value)
        nested = any(isinstance(item, Mapping | list | tuple) for item in items)
        return ("; " if nested else ", ").join(_plain(element) for element in items)
    return str(value)
