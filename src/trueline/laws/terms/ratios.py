"""Ratios of probabilities in the losses of a Run, by step and rank."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from trueline.judge.stats.memoize import memoized
from trueline.schema.columns.loss_values import CLAMPED, LOG_SIGMOID, LikelihoodRatio
from trueline.schema.errors import CannotTell
from trueline.schema.text.words import counted
from trueline.store.reader import Run

Place = tuple[int, int]
"""The backward pass of a step, and which ratio of its kind in that loss."""
Ratios = Sequence[tuple[Place, LikelihoodRatio]]


@memoized
def ratios(run: Run) -> Mapping[tuple[int, int], Ratios]:
    """By step and rank; raises ``CannotTell`` where no loss has one."""
    rows = {key: _placed(LikelihoodRatio.from_row(row.tolist())) for key, row in run.lists("likelihood_ratios").items()}
    if not rows:
        raise CannotTell("no loss was seen that has a ratio of probabilities", reason="by-design")
    return rows


def _placed(of_step: Sequence[LikelihoodRatio]) -> Ratios:
    numbers = Counter[tuple[int, int]]()
    placed: list[tuple[Place, LikelihoodRatio]] = []
    for ratio in of_step:
        placed.append(((ratio.backward_pass, numbers[ratio.backward_pass, ratio.kind]), ratio))
        numbers[ratio.backward_pass, ratio.kind] += 1
    return placed


def clipping_of_ratios(run: Run) -> tuple[str, Any] | None:
    """On how many elements the clamp of a ratio of probabilities acts, and at how many steps all ratios are 1."""
    if not run.has("likelihood_ratios"):
        return None
    by_key = {key: [ratio for _, ratio in of_step] for key, of_step in ratios(run).items()}
    of_clamp = {key: [ratio for ratio in row if ratio.kind == CLAMPED] for key, row in by_key.items()}
    of_any = {key: [ratio for ratio in row if ratio.kind != LOG_SIGMOID] for key, row in by_key.items()}
    steps = {step for (step, _), row in of_any.items() if row}
    if not steps:
        return None
    alike = {step for (step, _), row in of_any.items() if row and all(r.neutral == r.elements for r in row)}
    elements = sum(ratio.elements for row in of_clamp.values() for ratio in row)
    outside = sum(ratio.outside for row in of_clamp.values() for ratio in row)
    value = {"steps": len(steps), "all_one": len(alike), "elements": elements, "clipped": outside}
    text = f"ratios of new to old probabilities are all exactly 1 at {len(alike)} of {counted(len(steps), 'step')}"
    if elements:
        text += f"; their clip acts on {outside:,} of {elements:,}"
    return text, value
