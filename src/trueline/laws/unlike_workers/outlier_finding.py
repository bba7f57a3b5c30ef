"""Outliers as their Findings report them: who, since when, how sure, where, and what to do next."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from trueline.judge.compared_ranks import Floats, sites_of
from trueline.judge.series.batch_features import FeedComparison, compare_feeds, computed_alike
from trueline.judge.stats.intervals import Estimate, mean_difference
from trueline.judge.stats.memoize import memoized
from trueline.judge.stats.tails import NAMING_LEVEL
from trueline.laws.unlike_workers.outliers import Outlier, effect_of, whole_and_groups
from trueline.laws.unlike_workers.series import WorkerSeries
from trueline.schema.finding import Finding
from trueline.schema.text.words import capitalized, groups_text, named_some, of_ranks, ranks_text, since_text

_MAX_GROUPS = 8
"""Parameter groups that a Finding lists."""


@dataclass(frozen=True)
class DifferingGroups:
    """The parameter groups in which workers differ: ``values`` [T, N] of the whole gradient or of one group, a clause
    that names the groups where these are not all, names for sites, and the effects in the groups that moved.
    """

    values: Floats
    clause: str
    names: tuple[str, ...]
    effects: Mapping[str, float]


@dataclass(frozen=True)
class NamedOutlier:
    """An outlier among the workers of ``series``, in the words, ranks and steps of its Finding."""

    series: WorkerSeries
    outlier: Outlier

    @property
    def ranks(self) -> tuple[int, ...]:
        """Global ranks that are named together, ascending."""
        return self._ranks_of(self.outlier.workers)

    @property
    def peer_ranks(self) -> tuple[int, ...]:
        """Global ranks that they are compared with, ascending."""
        return self._ranks_of(self.outlier.peers)

    @property
    def concerned_ranks(self) -> tuple[int, ...]:
        """Global ranks of which some are faulty: those named, or all where that is undecided."""
        return self._ranks_of(self.outlier.concerned)

    @property
    def first_step(self) -> int:
        """The optimizer step at which the evidence begins."""
        return int(self.series.steps[self.outlier.first])

    @property
    def last_step(self) -> int:
        """The optimizer step at which the evidence is highest."""
        return int(self.series.steps[self.outlier.last])

    @property
    def onset_interval(self) -> tuple[int, int]:
        """The first and last step at which it may have begun (95 %)."""
        low, high = self.outlier.onset_bounds
        return int(self.series.steps[low]), int(self.series.steps[high])

    @property
    def is_undecided(self) -> bool:
        """True if the peers may as well be the faulty ones."""
        return self.outlier.undecided

    @property
    def is_in_halves(self) -> bool:
        """True if several workers stand beside as many others or more, so that neither is one odd rank."""
        return min(len(self.outlier.workers), len(self.outlier.peers)) > 1 and self.is_undecided

    @property
    def subject(self) -> str:
        """``rank 3``, or ``ranks 0 and 1`` where several are named together."""
        return ranks_text(self.ranks)

    @property
    def counterpart(self) -> str:
        """``the others``, or the ranks where it is undecided which is faulty."""
        return ranks_text(self.peer_ranks) if self.is_undecided else "the others"

    @property
    def when_text(self) -> str:
        """``since step 1240 (between 1236 and 1241)`` where it goes on to the end, ``at steps 1240-1300`` where it
        ended, with when it may have begun.
        """
        low, high = self.onset_interval
        if self.outlier.ongoing:
            return since_text(self.first_step, (low, high))
        onset = f" (from between {low} and {high} on)" if low < high else ""
        return f"at steps {self.first_step}-{self.last_step}{onset}"

    @property
    def doubt(self) -> str:
        """A clause on how the faulty rank is known, or why it is not; empty where the others are a majority."""
        if self.outlier.decided_by:
            return f"; {self.subject} is named because its own series jumps there and the other's does not"
        if not self.is_undecided:
            return ""
        if len(self.outlier.workers) + len(self.outlier.peers) == 2:
            return "; of two workers it is undecided which is faulty"
        return "; no majority agrees, so it is undecided which are faulty"

    def effect(self, values_TN: Floats, measure: Callable[..., Estimate] = mean_difference) -> Estimate:
        """The estimate of ``measure`` for the named workers and their peers, during the evidence."""
        return effect_of(self.outlier, values_TN, measure)

    def claim(self, text: str) -> str:
        """The sentence with a capital, the doubt at its end, and a full stop; then what was fed, if something else."""
        feed = _feed_of(self.series, self.outlier)
        reads = "reads" if len(self.ranks) == 1 else "read"
        more = f" What {self.subject} {reads} differs too: {feed.text}." if feed.text else ""
        if feed.parts.get("loss") == "other":
            more += f" {capitalized(of_ranks(['loss'], self.ranks))} computed by other operations."
        return f"{capitalized(text)}{self.doubt}.{more}"

    def sites(self, names: tuple[str, ...], *, phase: str) -> tuple[str, ...]:
        """The most telling places: the named groups of each worker concerned, at the first step of the evidence."""
        return sites_of(self.first_step, self.concerned_ranks, phase=phase, names=names)

    def fields(self, interval: tuple[float, float], **evidence: Any) -> Mapping[str, Any]:
        """The fields of its Finding that do not depend on the quantity; ``interval`` (95 %) is of what was measured."""
        outlier, steps = self.outlier, self.series.steps
        finite = all(math.isfinite(bound) for bound in interval)
        return {
            "ranks": self.concerned_ranks,
            "step_first": self.first_step,
            "step_last": self.last_step,
            "false_alarm_rate": outlier.false_alarm_rate,
            "evidence": {
                "statistic": outlier.quantity if outlier.group is None else f"{outlier.quantity} of a parameter group",
                # JSON has no infinity, which bounds are where no error could be estimated.
                "interval": list(interval) if finite else None,
                "log_height": outlier.log_height,
                "threshold": outlier.threshold,
                "growth": [[int(steps[index]), height] for index, height in outlier.growth],
                "crossed_step": int(steps[outlier.crossed]),
                "onset_interval": list(self.onset_interval),
                "ongoing": outlier.ongoing,
                "num_compared": len(outlier.workers) + len(outlier.peers),
                "undecided": outlier.undecided,
                "decided_by": outlier.decided_by,
                "memory": outlier.dependence.ratio,
                "memory_steps": outlier.dependence.reach,
                "fed": dict(_feed_of(self.series, outlier).parts),
                **evidence,
            },
        }

    @property
    def declaration_advice(self) -> str:
        """How to declare workers that are meant to differ, as an edit of the plan."""
        if self.is_in_halves:
            return (
                "If they are meant to differ (pieces of the same sequences, another data mixture), list the ranks that "
                f"should agree in the plan: worker_groups = {groups_text(*sorted([self.ranks, self.peer_ranks]))}."
            )
        return (
            f"If {self.subject} {'is' if len(self.ranks) == 1 else 'are'} meant to differ (another data mixture, "
            "longer sequences), list the ranks that should agree in the "
            f"plan: worker_groups = {groups_text(self.peer_ranks)}."
        )

    @cached_property
    def differing_groups(self) -> DifferingGroups:
        """The groups in which an outlier in the gradient norm or direction differs."""
        whole_TN, groups_TNG = whole_and_groups(self.series, self.outlier.quantity)
        all_names, group = self.series.group_names, self.outlier.group
        moved = self._moved_groups(groups_TNG)
        names = tuple(name for name, _ in moved)
        effects = {name: effect.value for name, effect in moved[:_MAX_GROUPS]}
        if group is not None and len(names) < len(all_names):
            # The group whose detector alarmed comes first, even where its effect alone is within chance.
            site_names = tuple(dict.fromkeys([all_names[group], *names]))
            return DifferingGroups(groups_TNG[:, :, group], f" in {all_names[group]}", site_names, effects)
        if not names or len(names) == len(all_names):
            return DifferingGroups(whole_TN, "", ("all",), effects)
        return DifferingGroups(whole_TN, f" (most in {named_some(names)})", names[:_MAX_GROUPS], effects)

    def gradient_finding(
        self,
        text: str,
        *,
        code: str,
        measured: float,
        expected: float,
        unit: str,
        interval: tuple[float, float],
        advice: tuple[str, ...],
        **evidence: Any,
    ) -> Finding:
        """The warning of an outlier in gradient norm or direction."""
        groups = self.differing_groups
        return Finding(
            code=code,
            severity="warning",
            claim=self.claim(text),
            sites=self.sites(groups.names, phase="grad"),
            measured=measured,
            expected=expected,
            unit=unit,
            next=(*advice, self.declaration_advice),
            **self.fields(interval, groups=dict(groups.effects), **evidence),
        )

    def _ranks_of(self, workers: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(sorted(self.series.ranks[worker] for worker in workers))

    def _moved_groups(self, values_TNG: Floats) -> list[tuple[str, Estimate]]:
        """The parameter groups in which the workers differ beyond chance, surest first, with the difference.

        The level, ``NAMING_LEVEL`` split over the groups, decides what a Finding says, never whether there is one.
        """
        names = self.series.group_names
        measured = [g for g in range(len(names)) if np.isfinite(values_TNG[:, :, g]).any()]
        moved: list[tuple[str, Estimate]] = []
        for g in measured:
            effect = self.effect(values_TNG[:, :, g])
            low, high = effect.interval(1 - NAMING_LEVEL / len(measured))
            if not low <= 0 <= high:
                moved.append((names[g], effect))
        # An error of 0, where all steps differ by the same, comes first.
        return sorted(moved, key=lambda entry: -abs(entry[1].value) / max(entry[1].error, 1e-300))


@memoized
def _feed_of(series: WorkerSeries, outlier: Outlier) -> FeedComparison:
    """Differences from their peers in what the workers concerned read, and compute their loss by, over the steps of the
    evidence.
    """
    steps = slice(outlier.first, outlier.last + 1)
    arguments = series.arguments(series.steps[steps])
    feed = compare_feeds(series.features[steps], outlier.workers, outlier.peers, arguments, ranks=series.ranks)
    loss = computed_alike(series.loss_operations[steps], outlier.workers, outlier.peers)
    return replace(feed, parts={**feed.parts, **({"loss": loss} if loss else {})})
