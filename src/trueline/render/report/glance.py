"""A Run at a glance: how many ranks and steps, how it was watched, and what that cost."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

import numpy as np

from trueline.judge.watching_cost import watching_cost
from trueline.render.wording import seconds_words
from trueline.schema.text.words import counted

if TYPE_CHECKING:
    from trueline.store.reader import Run

GLANCE = ("Workers", "Steps", "Watched as", "Gradient signals", "Step time", "Cost of watching", "Started")
"""What each text of ``glance`` is."""


def glance(run: Run) -> tuple[str, ...]:
    """The facts of ``run`` that ``GLANCE`` names."""
    step_s_TN, timed_TN = run.pivot("step_s")
    cost = watching_cost(run)
    _, sampled_TN = run.pivot("grad_norm")
    sampled_T = run.steps[sampled_TN.any(axis=1)]
    gaps = np.diff(sampled_T)
    gap = int(np.median(gaps)) if gaps.size else 0
    sampling = "every step" if gap == 1 else f"every {gap:,} steps" if gap else counted(sampled_T.size, "step")
    steps = f"{run.steps.size:,} ({run.steps[0]}–{run.steps[-1]})" if run.steps.size else "none"
    num_ranks = len(run.ranks)
    return (
        f"{run.world_size}" if num_ranks == run.world_size else f"{num_ranks} of {run.world_size}",
        steps,
        run.manifest.adapter or "not stated",
        sampling,
        seconds_words(float(np.median(step_s_TN[timed_TN]))) if timed_TN.any() else "not measured",
        "not measured" if cost is None else cost.words,
        _moment(run.manifest.started_at),
    )


def _moment(iso: str) -> str:
    """An ISO 8601 time to the second, as text; what cannot be parsed stays as it is."""
    try:
        return datetime.fromisoformat(iso).astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    except ValueError:
        return iso or "not stated"
