"""Last step of a fault: the last look at what shows it, or an earlier one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import numpy as np

from trueline.judge.registry import installed_checks
from trueline.schema.finding import Finding
from trueline.store.reader import Run


def over_since(run: Run, findings: Sequence[Finding]) -> int | None:
    """The first step at which none of ``findings`` is shown any more, though it was looked at; None where one of them
    still is at the last look. Ranks are apart by some steps, and some signals are sampled: it is the last look of what
    a finding is made from that counts, on all ranks.
    """
    needs = {check.code: check.needs for check in installed_checks()}
    ends = [_over_since(run, finding, needs.get(finding.code, ())) for finding in findings]
    over_steps = [end for end in ends if end is not None]
    return max(over_steps) if over_steps and len(over_steps) == len(ends) else None


def _over_since(run: Run, finding: Finding, needs: Sequence[str]) -> int | None:
    last, goes_on = finding.step_last, finding.evidence.get("ongoing")
    if last is None or goes_on is True or not run.steps.size:
        return None
    looks = _looks(run, needs)
    later = looks[looks > last]  # at these the fault would have shown
    return int(later[0]) if later.size else (last + 1 if goes_on is False else None)


def _looks(run: Run, needs: Sequence[str]) -> Any:
    """[K] steps at which all of ``needs`` were measured on every rank that left something, ascending; those that every
    rank has a row of where they were never measured together.
    """
    table = cast(Any, run)  # Arrow's columns have no types
    columns = [table.column(name) for name in needs if run.has(name)]
    steps_R, ranks_R = (np.asarray(table.column(name)) for name in ("step", "rank"))
    measured_R = np.ones(len(steps_R), dtype=bool)
    for column in columns:
        measured_R &= np.asarray(column.is_valid())
    common_steps = _of_every_rank(steps_R[measured_R], ranks_R[measured_R], len(run.ranks))
    return common_steps if common_steps.size else _of_every_rank(steps_R, ranks_R, len(run.ranks))


def _of_every_rank(steps_R: Any, ranks_R: Any, num_ranks: int) -> Any:
    pairs = np.unique(np.stack([steps_R, ranks_R]), axis=1)
    steps, counts = np.unique(pairs[0], return_counts=True)
    return steps[counts == num_ranks]
