"""Learning rates of ranks, where they are not the same."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from trueline.judge.compared_ranks import Floats, data_parallel_ranks, differs
from trueline.schema.errors import RunError
from trueline.store.reader import Run


def first_step_of_unequal_rates(run: Run) -> int | None:
    """First step at which learning rates differ between ranks; None where they do at none."""
    return min(unequal_rates(run, data_parallel_ranks(run)), default=None)


def unequal_rates(run: Run, ranks: Sequence[int]) -> dict[int, dict[int, Floats]]:
    """Learning rates of each parameter group by step and rank, at the steps at which they differ."""
    try:
        rates_TNK, measured_TN = run.stack("lr", ranks=ranks)
    except RunError:  # ranks have different numbers of groups
        steps = None
    else:
        bits_TNK = rates_TNK.view(np.uint64)  # by bits NaN equals itself, and 0.0 is not -0.0
        changed_T = np.any([differs(bits_TN, measured_TN) for bits_TN in np.moveaxis(bits_TNK, 2, 0)], axis=0)
        steps = run.steps[changed_T].tolist()
    by_step: defaultdict[int, dict[int, Floats]] = defaultdict(dict)
    for (step, rank), rates in run.lists("lr", steps=steps, ranks=ranks).items():
        by_step[step][rank] = rates
    return {
        step: rates_of
        for step, rates_of in by_step.items()
        if len({rates.tobytes() for rates in rates_of.values()}) > 1
    }
