"""Ranks that called backward more often than others at the steps at which replicas received different gradients."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from trueline.judge.compared_ranks import any_over, ranks_where
from trueline.laws.reduction.reduction import Reductions
from trueline.schema.text.words import counted, ranks_text


@dataclass(frozen=True)
class ExtraPasses:
    """The ``ranks`` that ran more backward passes than others, and the most and the fewest of any at the first step."""

    ranks: tuple[int, ...]
    most_calls: int
    fewest_calls: int

    ADVICE: ClassVar = (
        "Look for a backward() that only some ranks call, as for a plot or a probe: it adds to .grad. Use "
        "torch.autograd.grad, which returns gradients and leaves .grad alone, or put .grad back after it."
    )

    @property
    def sentence(self) -> str:
        """Continues a claim on the steps of the extra passes."""
        calls = counted(self.most_calls, "backward call")
        return f" There, and at no other step, {ranks_text(self.ranks)} made {calls}, the others {self.fewest_calls}."


def extra_passes(reductions: Reductions, rows: Sequence[int]) -> ExtraPasses | None:
    """Passes of ranks that ran more of them than others at ``rows`` and no other step, as far as all were counted
    (``passes_begun``); else None.
    """
    passes_TN, measured_TN = reductions.numbers("passes_begun")
    counted_T = ~any_over(~measured_TN, 1)
    most_T, fewest_T = passes_TN.max(axis=1), passes_TN.min(axis=1)
    in_rows_T = np.isin(np.arange(len(passes_TN)), rows)
    extra_rows = np.flatnonzero(counted_T & (most_T > fewest_T))
    if not len(extra_rows) or not np.array_equal(extra_rows, np.flatnonzero(counted_T & in_rows_T)):
        return None
    first = extra_rows[0]
    ranks = ranks_where(reductions.ranks, passes_TN[first] > fewest_T[first])
    return ExtraPasses(ranks, int(most_T[first]), int(fewest_T[first]))
