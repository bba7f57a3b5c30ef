"""Alarms of thresholds as people use them, on the two series that a training usually logs: the loss and the norm of the
gradient, averaged over ranks.

    trueline gallery --keep DIR
    python -m benchmarks.gallery.thresholds --runs DIR
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
from benchmarks.page import arguments, head, records, write
from gallery.entry import Entry, Fault, all_entries

from trueline.store.reader import Run

Rule = Callable[[Sequence[float]], bool]
"""Whether a series, by step, raises an alarm anywhere."""

_WINDOW = 20
_LEAST = 5
"""Values that a rule over a trailing window waits for."""
_BETA = 0.99
"""The weight of the past in msProbe's running mean (``msprobe/pytorch/monitor/data_writers.py``, 26.2.0)."""


def six_sigma(values: Sequence[float]) -> bool:
    """A value above mean + 6 standard deviations of the 20 before it."""
    for place in range(_LEAST, len(values)):
        past = np.array(values[max(0, place - _WINDOW) : place])
        if values[place] > past.mean() + 6 * past.std():
            return True
    return False


def ten_times(values: Sequence[float]) -> bool:
    """A value above 10 times the largest before it."""
    return any(values[place] > 10 * max(values[:place]) for place in range(1, len(values)))


def spike(values: Sequence[float]) -> bool:
    """A value above 1.5 times the median of the 20 before it: a rule for the spikes that PaLM's authors restarted
    before (arXiv:2204.02311, section 5.1, which gives none).
    """
    return any(
        values[place] > 1.5 * float(np.median(values[max(0, place - _WINDOW) : place]))
        for place in range(_LEAST, len(values))
    )


def turbulence(values: Sequence[float], threshold: float = 0.5) -> bool:
    """AnomalyTurbulence of msProbe 26.2.0: a magnitude above (1 + threshold) times its running mean."""
    mean = abs(values[0]) if values else 0.0
    for value in values:
        if abs(value) > mean * (1 + threshold):
            return True
        mean = _BETA * mean + (1 - _BETA) * abs(value)
    return False


_SAID = """Rules over the two series that a training usually logs, both averaged over ranks (the norm is that of each
rank's own gradient before it is reduced); a value that is not finite is an alarm under each. Runs are short, some 12 to
70 steps, each is one draw of data, and what a rule needs first (5 values, for those over a window) is lost to it. Such
series cannot show what is there from the first step on (ranks that read the same data, start apart, or are not
averaged), nor a mistake that keeps them smooth, nor which rank it is. What `trueline check` says of the same faults is
in [README.md](README.md)."""


def main() -> None:
    """Rewrite thresholds.md."""
    parser = arguments(__doc__)
    parser.add_argument("--runs", type=Path, required=True, help="what `trueline gallery --keep` left")
    folder = parser.parse_args().runs
    title = head(
        "Thresholds, on the faults of the gallery", command="python -m benchmarks.gallery.thresholds --runs DIR"
    )
    write(__file__, title, rivals(all_entries(), folder), _SAID, name="thresholds.md")


RULES: Mapping[str, Rule] = {
    "mean + 6 sigma of the last 20": six_sigma,
    "10 x the largest so far": ten_times,
    "1.5 x the median of the last 20 (spikes)": spike,
    "AnomalyTurbulence of msProbe 26.2.0, threshold 0.5": turbulence,
}


def rivals(entries: Sequence[Entry], folder: Path) -> str:
    """A row for each rule: faults and healthy runs with an alarm in either series; a value that is not finite is one
    under every rule.
    """
    runs = {
        (entry.id, variant): [_series(folder / entry.id / variant, name) for name in ("loss", "grad_norm")]
        for entry in entries
        for variant in (("faulty", "healthy") if isinstance(entry, Fault) else ("healthy",))
        if (folder / entry.id / variant).exists()
    }
    rows = []
    for name, rule in RULES.items():
        alarmed = {key for key, series in runs.items() if any(_alarms(rule, values) for values in series)}
        found = {id for id, variant in alarmed if variant == "faulty"}
        rows.append(
            {
                "rule, for loss and gradient norm": name,
                "faulty runs with an alarm": f"{len(found)} of {sum(key[1] == 'faulty' for key in runs)}",
                "of them silent on the healthy counterpart": sum((id, "healthy") not in alarmed for id in found),
                "healthy runs with an alarm": f"{sum(key[1] == 'healthy' for key in alarmed)} of "
                f"{sum(key[1] == 'healthy' for key in runs)}",
            }
        )
    return records(rows)


def _alarms(rule: Rule, values: Sequence[float]) -> bool:
    finite = [value for value in values if math.isfinite(value)]
    return len(finite) < len(values) or rule(finite)


def _series(path: Path, name: str) -> list[float]:
    """The mean over the ranks that were measured, of each step."""
    values, measured = Run(path).pivot(name)
    return [float(row[known].mean()) for row, known in zip(values, measured, strict=True) if known.any()]


if __name__ == "__main__":
    main()
