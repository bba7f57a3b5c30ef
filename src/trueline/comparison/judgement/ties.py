"""A tie of two parameters that only one run has: two calls take one tensor there, and two in the other run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from trueline.comparison.judgement.step import Step
from trueline.comparison.judgement.values.compared import Compared
from trueline.comparison.match.fused_modules import PART
from trueline.judge.recorded.step_values import StepValues


class BrokenTie(NamedTuple):
    """The names of parameters that are one tensor in one run alone (``of_run``: not in the reference), and the first
    ``row`` at which a call takes another of them than in the other run.
    """

    step: Step
    row: Compared
    names: Sequence[str]
    of_run: bool


def broken_tie(steps: Sequence[Step]) -> BrokenTie | None:
    """The first one of the first step; None where parameters are tied alike."""
    at = min((step.step for step in steps), default=None)
    ties = (_of_step(step) for step in steps if step.step == at)
    return next((tie for tie in ties if tie is not None), None)


def _of_step(step: Step) -> BrokenTie | None:
    names, ref_names = (_names_by_root(side) for side in step.alignment.sides)
    pairs: dict[tuple[bool, str], dict[str, Compared]] = {}
    for row in step.rows:
        if row.run_value is None or row.ref_value is None or row.run_value.site.phase != "fwd":
            continue
        if row.run_value.shape != row.ref_value.shape or PART in row.run_value.flags | row.ref_value.flags:
            continue  # parts of one weight are of one name, and tied to nothing
        name, ref_name = names.get(row.run_value.root), ref_names.get(row.ref_value.root)
        if name is not None and ref_name is not None:
            pairs.setdefault((False, ref_name), {}).setdefault(name, row)
            pairs.setdefault((True, name), {}).setdefault(ref_name, row)
    # A tensor of one run that meets two names of the other is tied there alone.
    for (of_run, _), rows in pairs.items():
        if len(rows) > 1:
            return BrokenTie(step, list(rows.values())[1], list(rows), of_run)
    return None


def _names_by_root(side: StepValues) -> Mapping[int, str]:
    """The name of the parameter that a value is, by root."""
    return {value.root: value.site.name for value in side.values if value.site.phase == "param"}
