"""What the losses of a Run were given (``schema/columns/loss_inputs.py``), by step and rank, and findings of that."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from trueline.judge.compared_ranks import MAX_SITES
from trueline.schema.columns.loss_inputs import LossInputs
from trueline.schema.errors import CannotTell
from trueline.schema.finding import Finding, Severity
from trueline.schema.site import Site
from trueline.schema.text.words import ranks_text
from trueline.store.reader import Run

StepRank = tuple[int, int]
"""Step and rank."""


def loss_inputs(run: Run) -> Mapping[StepRank, LossInputs]:
    """Inputs of the losses by step and rank; raises ``CannotTell`` where none were seen."""
    inputs = {key: LossInputs.of(row.tolist()) for key, row in run.lists("loss_inputs").items()}
    if not inputs:
        raise CannotTell("no backward pass was seen from whose loss its functions can be read", reason="not-recorded")
    return inputs


def loss_finding(
    run: Run,
    code: str,
    severity: Severity,
    claim: str,
    keys: Collection[StepRank],
    *,
    kind: str,
    advice: tuple[str, ...],
    measured: float | None = None,
    unit: str = "",
) -> Finding:
    """The Finding of an exact fact on losses at these steps and ranks; ``claim`` has {} for the ranks."""
    steps, ranks = sorted({step for step, _ in keys}), tuple(sorted({rank for _, rank in keys}))
    return Finding(
        code=code,
        severity=severity,
        claim=claim.format(ranks_text(ranks, all_ranks=run.ranks)),
        ranks=ranks,
        step_first=steps[0],
        step_last=steps[-1],
        sites=tuple(str(Site(step, 0, rank, "loss", "all")) for step, rank in sorted(keys))[:MAX_SITES],
        measured=measured,
        expected=None if measured is None else 0.0,
        unit=unit,
        false_alarm_rate=0.0,
        evidence={"kind": kind, "steps": steps[:100]},
        next=advice,
    )
