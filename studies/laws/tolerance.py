"""The worst error of healthy updates, in units of u times the sum of the magnitudes of the terms."""

from __future__ import annotations

from benchmarks.page import table
from tests.optimizer_settings import BROKEN, settings, train

from trueline.judge.series.update_rules import PARAM


def measure() -> tuple[str, float, int]:
    """A table of all settings, the worst of those that torch computes rightly, and how many these are."""
    rows: list[list[str]] = []
    worst, num = 0.0, 0
    for setting in settings():
        errors: dict[str, float] = {}
        for _, judged in train(setting):
            for name in judged.excess:
                errors[name] = max(errors.get(name, 0.0), judged.worst_error(name))
            assert judged.counts_right
        states = ", ".join(f"{name} {value:.2f}" for name, value in errors.items() if name != PARAM)
        dtype = str(setting.dtype).removeprefix("torch.")
        name = f"{setting.rule}{f' ({BROKEN})' if setting.broken else ''}"
        rows.append([name, setting.form, dtype, states, f"{errors[PARAM]:.2f}"])
        if not setting.broken:
            worst, num = max(worst, *errors.values()), num + 1
    return table(["optimizer", "form", "dtype", "states", "parameter"], rows), worst, num
