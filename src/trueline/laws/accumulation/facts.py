"""Facts of backward passes between two updates."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from trueline.judge.compared_ranks import data_parallel_ranks
from trueline.judge.facts.fact import Mark, Subject
from trueline.schema.text.words import steps_text
from trueline.store.reader import Run

TWICE = 2
"""Steps from which on it is a habit of the loop."""


def unused_passes(run: Run) -> tuple[str, Any] | None:
    """Backward passes whose gradients were cleared before any update, on the first rank; None where none was."""
    # Models that train each other (GANs) send gradients through one another, and clear them. Scalers leave out updates.
    if run.models or run.has("loss_scale") or not run.has("passes_begun"):
        return None
    ranks = [list(run.ranks).index(rank) for rank in data_parallel_ranks(run)[:1]]
    (begun_TN, has_begun_TN), (micros_TN, has_micros_TN) = run.pivot("passes_begun"), run.pivot("num_micro")
    seen_T = (has_begun_TN & has_micros_TN)[:, ranks].any(axis=1)
    unused_T = np.where(seen_T, np.nan_to_num((begun_TN - micros_TN)[:, ranks].sum(axis=1)), 0)
    steps = run.steps[unused_T > 0].tolist()
    if not steps:
        return None
    passes = int(begun_TN[seen_T][:, ranks].sum())
    unused = int(unused_T[unused_T > 0].sum())
    at = steps_text(steps, among=run.steps[seen_T].tolist())
    text = f"no update used the gradients of {unused:,} of {passes:,} backward passes: cleared before, at {at}"
    return text, {"unused": unused, "passes": passes, "num_steps": len(steps), "num_looked": int(seen_T.sum())}


def _now_and_then(value: Mapping[str, Any]) -> bool:
    """True where a few updates have such passes: where most have, the loop looks at gradients on purpose."""
    return value["num_steps"] >= TWICE and TWICE * value["num_steps"] <= value["num_looked"]


SUBJECTS: tuple[Subject, ...] = (
    Subject(
        "unused-passes",
        "update",
        "backward passes that no update used",
        unused_passes,
        (
            Mark(
                "passes-not-used",
                _now_and_then,
                advice=(
                    "Look for `zero_grad()` between a backward pass and the update, and for losses that are left out."
                ),
            ),
        ),
    ),
)
