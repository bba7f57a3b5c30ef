"""Findings of sampled updates: parameters, ranks and steps that a law does not hold for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from trueline.judge.compared_ranks import MAX_SITES
from trueline.judge.series.sampled_updates import Slice
from trueline.judge.series.update_rules import PARAM
from trueline.laws.optimizer.judgement import JudgedUpdate
from trueline.schema.finding import Finding, Severity
from trueline.schema.site import Site
from trueline.schema.text.words import named_some, ranks_text, steps_text


@dataclass(frozen=True)
class AffectedSlices:
    """Slices that a law does not hold for, at least one.

    ``steps`` are those that were sampled. ``compared`` are all slices that the law was tried on, where they date when
    it began.
    """

    slices: Sequence[Slice]
    steps: Sequence[int] = ()
    compared: Sequence[Slice] = ()

    @property
    def names(self) -> list[str]:
        """Names of their parameters, once each, in the order of the slices."""
        return list(dict.fromkeys(sample.name for sample in self.slices))

    @property
    def optimizer(self) -> str:
        """Class of their optimizer, without its module."""
        return self.slices[0].optimizer.rpartition(".")[2]

    @property
    def step_first(self) -> int:
        """Earliest of their steps."""
        return min(sample.step for sample in self.slices)

    @property
    def location(self) -> str:
        """``of a and b on rank 0 at steps 0-3``."""
        ranks = ranks_text(sorted({sample.rank for sample in self.slices}))
        steps = steps_text((sample.step for sample in self.slices), among=self.steps)
        return f"of {named_some(self.names)} on {ranks} at {steps}"

    def finding(
        self,
        *,
        code: str,
        severity: Severity,
        claim: str,
        measured: float | None,
        expected: float | None,
        unit: str,
        next: tuple[str, ...],
        slot: str = PARAM,
        evidence: dict[str, Any] | None = None,
    ) -> Finding:
        """A Finding on these slices."""
        first = self.step_first
        at_first = [sample for sample in self.slices if sample.step == first]
        sites = [str(Site(first, 0, sample.rank, "opt", sample.name, slot=slot)) for sample in at_first]
        return Finding(
            code=code,
            severity=severity,
            claim=claim,
            ranks=tuple(sorted({sample.rank for sample in self.slices})),
            step_first=first,
            step_last=max(sample.step for sample in self.slices),
            sites=tuple(dict.fromkeys(sites))[:MAX_SITES],
            measured=measured,
            expected=expected,
            unit=unit,
            false_alarm_rate=0.0,  # laws are exact: rounding is allowed for
            evidence={
                "names": self.names[:100],
                "num_slices": len(self.slices),
                **self._onset(),
                **(evidence or {}),
            },
            next=next,
        )

    def _onset(self) -> dict[str, list[int]]:
        """``onset_interval``: from the step after the last good sample of what is affected first, to its own step.

        Nothing where it was never sampled before.
        """
        first, affected = self.step_first, {id(sample) for sample in self.slices}
        params = {(sample.rank, sample.name) for sample in self.slices if sample.step == first}
        ranks = {rank for rank, _ in params}
        at_first = [sample for sample in self.compared if sample.step == first and sample.rank in ranks]
        # Samples rotate through parameters. Where all of a step are affected, any parameter dates the onset.
        whole = all(id(sample) in affected for sample in at_first)
        good = [
            sample
            for sample in self.compared
            if sample.step < first and (whole or (sample.rank, sample.name) in params)
        ]
        good.sort(key=lambda sample: sample.step)
        last_good = {(sample.rank, "" if whole else sample.name): sample.step for sample in good}
        return {"onset_interval": [min(last_good.values()) + 1, first]} if last_good else {}


def sampled_steps(updates: Sequence[JudgedUpdate]) -> list[int]:
    """Steps of these updates, ascending."""
    return sorted({update.sample.step for update in updates})


def least_squares_factor(updates: Sequence[JudgedUpdate]) -> float:
    """The factor c of moved = c * declared that fits all elements best; NaN where none was to move."""
    declared = np.concatenate([update.move for update in updates])
    moved = np.concatenate([update.sample.after[PARAM] - update.sample.before[PARAM] for update in updates])
    finite = np.isfinite(declared) & np.isfinite(moved)
    total = float(np.sum(declared[finite] ** 2))
    return float(np.sum(declared[finite] * moved[finite])) / total if total > 0 else float("nan")
