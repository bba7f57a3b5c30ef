"""What all findings of outlying workers have in common: who, since when, how sure, where, and what to do next."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from trueline.judge.compared_ranks import Floats, sites_of
from trueline.judge.series.batch_features import Fed, computed_alike, fed
from trueline.judge.stats.intervals import Estimate
from trueline.judge.stats.memoize import memoized
from trueline.judge.stats.tails import NAMING_LEVEL
from trueline.laws.unlike_workers.outliers import Outlier, effect_of, whole_and_groups
from trueline.laws.unlike_workers.series import WorkerSeries
from trueline.schema.finding import Finding
from trueline.schema.text.words import capitalized, groups_text, named_some, of_ranks, ranks_text, since_text

_MAX_GROUPS = 8
"""Parameter groups that a Finding lists."""


def ranks_of(series: WorkerSeries, workers: tuple[int, ...]) -> tuple[int, ...]:
    """Global ranks of positions, ascending."""
    return tuple(sorted(series.ranks[worker] for worker in workers))


def named(series: WorkerSeries, outlier: Outlier) -> tuple[int, ...]:
    """Global ranks that are named together, ascending."""
    return ranks_of(series, outlier.workers)


def subject(series: WorkerSeries, outlier: Outlier) -> str:
    """``rank 3``, or ``ranks 0 and 1`` where several are named together."""
    return ranks_text(named(series, outlier))


def counterpart(series: WorkerSeries, outlier: Outlier) -> str:
    """``the others``, or the ranks where it is undecided which is faulty."""
    return ranks_text(ranks_of(series, outlier.others)) if outlier.undecided else "the others"


def when(series: WorkerSeries, outlier: Outlier) -> str:
    """``since step 1240 (between 1236 and 1241)`` where it goes on to the end, ``at steps 1240-1300`` where it ended,
    with when it may have begun.
    """
    first, last = int(series.steps[outlier.first]), int(series.steps[outlier.last])
    low, high = onset_interval(series, outlier)
    if outlier.ongoing:
        return since_text(first, (low, high))
    return f"at steps {first}-{last}" + (f" (from between {low} and {high} on)" if low < high else "")


def onset_interval(series: WorkerSeries, outlier: Outlier) -> tuple[int, int]:
    """The first and last step at which it may have begun (95 %)."""
    low, high = outlier.since
    return int(series.steps[low]), int(series.steps[high])


def doubt(series: WorkerSeries, outlier: Outlier) -> str:
    """A clause on how it is known, or not, which rank is faulty; empty where the others are a majority."""
    if outlier.decided_by:
        return f"; {subject(series, outlier)} is named because its own series jumps there and the other's does not"
    if not outlier.undecided:
        return ""
    if len(outlier.workers) + len(outlier.others) == 2:
        return "; of two workers it is undecided which is faulty"
    return "; no majority agrees, so it is undecided which are faulty"


def moved_groups(series: WorkerSeries, outlier: Outlier, values_TNG: Floats) -> list[tuple[str, Estimate]]:
    """The parameter groups in which the workers differ beyond chance, surest first, with the difference.

    The level, ``NAMING_LEVEL`` split over the groups, decides what a Finding says, never whether there is one.
    """
    measured = [g for g in range(len(series.group_names)) if np.isfinite(values_TNG[:, :, g]).any()]
    effects = [(series.group_names[g], effect_of(outlier, values_TNG[:, :, g])) for g in measured]
    moved: list[tuple[str, Estimate]] = []
    for name, effect in effects:
        low, high = effect.interval(1 - NAMING_LEVEL / max(len(measured), 1))
        if not low <= 0 <= high:
            moved.append((name, effect))
    return sorted(moved, key=lambda entry: -abs(entry[1].value) / max(entry[1].error, 1e-300))


@dataclass(frozen=True)
class WhereDiffering:
    """Where workers differ: ``values`` [T, N] of the whole or of one group, a clause that names the groups where it is
    not all of them, names for sites, and all groups that moved.
    """

    values: Floats
    clause: str
    names: tuple[str, ...]
    moved: Mapping[str, float]


def where_differing(series: WorkerSeries, outlier: Outlier) -> WhereDiffering:
    """In which groups an outlier in the gradient norm or direction differs."""
    whole_TN, groups_TNG = whole_and_groups(series, outlier.quantity)
    moved = moved_groups(series, outlier, groups_TNG)
    names = tuple(name for name, _ in moved)
    effects = {name: effect.value for name, effect in moved[:_MAX_GROUPS]}
    if outlier.group is not None and len(names) < len(series.group_names):
        own = series.group_names[outlier.group]
        return WhereDiffering(
            groups_TNG[:, :, outlier.group], f" in {own}", tuple(dict.fromkeys([own, *names])), effects
        )
    if not names or len(names) == len(series.group_names):
        return WhereDiffering(whole_TN, "", ("all",), effects)
    return WhereDiffering(whole_TN, f" (most in {named_some(names)})", names[:_MAX_GROUPS], effects)


def common(series: WorkerSeries, outlier: Outlier, interval: tuple[float, float], **evidence: Any) -> Mapping[str, Any]:
    """The fields of a Finding that do not depend on the quantity; ``interval`` (95 %) is of what was measured."""
    finite = all(math.isfinite(bound) for bound in interval)
    return {
        "ranks": ranks_of(series, outlier.concerned),
        "step_first": int(series.steps[outlier.first]),
        "step_last": int(series.steps[outlier.last]),
        "false_alarm_rate": outlier.false_alarm_rate,
        "evidence": {
            "statistic": outlier.quantity if outlier.group is None else f"{outlier.quantity} of a parameter group",
            "interval": list(interval) if finite else None,
            "log_height": outlier.log_height,
            "threshold": outlier.threshold,
            "growth": [[int(series.steps[at]), height] for at, height in outlier.growth],
            "crossed_step": int(series.steps[outlier.crossed]),
            "onset_interval": list(onset_interval(series, outlier)),
            "ongoing": outlier.ongoing,
            "num_compared": len(outlier.workers) + len(outlier.others),
            "undecided": outlier.undecided,
            "decided_by": outlier.decided_by,
            "memory": outlier.dependence.ratio,
            "memory_steps": outlier.dependence.reach,
            "fed": dict(fed_with(series, outlier).parts),
            **evidence,
        },
    }


@memoized
def fed_with(series: WorkerSeries, outlier: Outlier) -> Fed:
    """What the workers concerned read, and compute their loss by, beside the others, over the steps of the evidence."""
    steps = slice(outlier.first, outlier.last + 1)
    arguments = series.arguments(series.steps[steps])
    read = fed(series.features[steps], outlier.workers, outlier.others, arguments, ranks=series.ranks)
    loss = computed_alike(series.loss_operations[steps], outlier.workers, outlier.others)
    return replace(read, parts={**read.parts, **({"loss": loss} if loss else {})})


def gradient_finding(
    series: WorkerSeries,
    outlier: Outlier,
    place: WhereDiffering,
    text: str,
    *,
    code: str,
    sizes: tuple[float, float, str],
    interval: tuple[float, float],
    advice: tuple[str, ...],
    **evidence: Any,
) -> Finding:
    """The warning of an outlier in gradient norm or direction; ``sizes`` is measured, expected, and their unit."""
    measured, expected, unit = sizes
    return Finding(
        code=code,
        severity="warning",
        claim=claim(series, outlier, text),
        sites=sites(series, outlier, place.names, phase="grad"),
        measured=measured,
        expected=expected,
        unit=unit,
        next=(*advice, meant_to_differ(series, outlier)),
        **common(series, outlier, interval, groups=dict(place.moved), **evidence),
    )


def sites(series: WorkerSeries, outlier: Outlier, names: tuple[str, ...], *, phase: str) -> tuple[str, ...]:
    """The most telling places: the named groups of each worker concerned, at the first step of the evidence."""
    ranks = ranks_of(series, outlier.concerned)
    return sites_of(int(series.steps[outlier.first]), ranks, phase=phase, names=names)


def in_halves(outlier: Outlier) -> bool:
    """Whether several workers stand beside as many others or more, so that neither is one odd rank."""
    return min(len(outlier.workers), len(outlier.others)) > 1 and outlier.undecided


def meant_to_differ(series: WorkerSeries, outlier: Outlier) -> str:
    """How to declare workers that are meant to differ, as an edit of the plan."""
    if in_halves(outlier):
        groups = groups_text(*sorted([ranks_of(series, outlier.workers), ranks_of(series, outlier.others)]))
        return (
            "If they are meant to differ (pieces of the same sequences, another data mixture), list the ranks that "
            f"should agree in the plan: worker_groups = {groups}."
        )
    who = f"{subject(series, outlier)} {'is' if len(outlier.workers) == 1 else 'are'}"
    return (
        f"If {who} meant to differ (another data mixture, longer sequences), list the ranks that should agree in the "
        f"plan: worker_groups = {groups_text(ranks_of(series, outlier.others))}."
    )


def claim(series: WorkerSeries, outlier: Outlier, text: str) -> str:
    """The sentence with a capital, the doubt at its end, and a full stop; then what was fed, if something else."""
    found, who = fed_with(series, outlier), subject(series, outlier)
    reads = "reads" if len(outlier.workers) == 1 else "read"
    told = f" What {who} {reads} differs too: {found.text}." if found.text else ""
    told += f" {capitalized(of_ranks(['loss'], named(series, outlier)))} computed by other operations." * (
        found.parts.get("loss") == "other"
    )
    return f"{capitalized(text)}{doubt(series, outlier)}.{told}"
