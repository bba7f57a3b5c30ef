"""Findings of sampled updates: which parameters, on which ranks, at which steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from trueline.judge.compared_ranks import MAX_SITES
from trueline.judge.series.sampled_updates import Slice
from trueline.judge.series.update_rules import PARAM
from trueline.laws.optimizer.judgement import Judged
from trueline.schema.finding import Finding, Severity
from trueline.schema.site import Site
from trueline.schema.text.words import named_some, ranks_text, steps_text


def names_of(slices: Sequence[Slice]) -> list[str]:
    """The parameters of these slices, each once, in their order."""
    return list(dict.fromkeys(each.name for each in slices))


def place_text(slices: Sequence[Slice], *, among: Sequence[int]) -> str:
    """``of a and b on rank 0 at steps 0-3``; ``among`` are the steps that were sampled."""
    ranks = ranks_text(sorted({each.rank for each in slices}))
    steps = steps_text((each.step for each in slices), among=among)
    return f"of {named_some(names_of(slices))} on {ranks} at {steps}"


def optimizer_of(slices: Sequence[Slice]) -> str:
    """The name of the class of their optimizer."""
    return slices[0].optimizer.rpartition(".")[2]


def finding_on(
    slices: Sequence[Slice],
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
    looked: Sequence[Slice] = (),
) -> Finding:
    """The Finding on ``slices``, at least one, of all that were ``looked`` at, where they date when it began. Laws are
    exact: rounding is allowed for, so there is no false alarm.
    """
    first = min(each.step for each in slices)
    at_first = [each for each in slices if each.step == first]
    sites = [str(Site(first, 0, each.rank, "opt", each.name, slot=slot)) for each in at_first]
    return Finding(
        code=code,
        severity=severity,
        claim=claim,
        ranks=tuple(sorted({each.rank for each in slices})),
        step_first=first,
        step_last=max(each.step for each in slices),
        sites=tuple(dict.fromkeys(sites))[:MAX_SITES],
        measured=measured,
        expected=expected,
        unit=unit,
        false_alarm_rate=0.0,
        evidence={
            "names": names_of(slices)[:100],
            "num_slices": len(slices),
            **_onset(slices, looked),
            **(evidence or {}),
        },
        next=next,
    )


def _onset(slices: Sequence[Slice], looked: Sequence[Slice]) -> dict[str, list[int]]:
    """``onset_interval``: from the step after the last at which the first of ``slices`` were looked at and well, to
    theirs; nothing where they never were.
    """
    first, wrong = min(each.step for each in slices), {id(each) for each in slices}
    parts = {(each.rank, each.name) for each in slices if each.step == first}
    whole = all(id(each) in wrong for each in looked if each.step == first and each.rank in {rank for rank, _ in parts})
    well = [each for each in looked if each.step < first and (whole or (each.rank, each.name) in parts)]
    last = {(each.rank, "" if whole else each.name): each.step for each in sorted(well, key=lambda each: each.step)}
    return {"onset_interval": [min(last.values()) + 1, first]} if last else {}


def sampled_steps(judged: Sequence[Judged]) -> list[int]:
    """The steps that were sampled, ascending."""
    return sorted({each.of.step for each in judged})


def factor_of(judged: Sequence[Judged]) -> float:
    """The least-squares factor c of moved = c * declared, over all elements; NaN where none was to move."""
    declared = np.concatenate([each.move for each in judged])
    moved = np.concatenate([each.of.after[PARAM] - each.of.before[PARAM] for each in judged])
    known = np.isfinite(declared) & np.isfinite(moved)
    total = float(np.sum(declared[known] ** 2))
    return float(np.sum(declared[known] * moved[known])) / total if total > 0 else float("nan")
