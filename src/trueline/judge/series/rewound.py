"""From which checkpoint a start of the job went on, by its weights."""

from __future__ import annotations

import numpy as np

from trueline.store.reader import Run


def rewound_to(run: Run, rank: int, restart: int, *, before: Run | None = None) -> int | None:
    """The latest step that ``rank`` began with bit for bit the parameters of the start at ``restart``: it goes on from
    a checkpoint that is older than the last step, whatever it counts. Of the steps before ``restart``, or of all that
    earlier starts had made where these are given as ``before``. None where no step that was looked at did.
    """
    opening = run.lists("param_digests", steps=[restart], ranks=[rank]).get((restart, rank))
    if opening is None or not len(opening):
        return None
    rows = (run if before is None else before).lists("param_digests", ranks=[rank])
    steps = [step for step, _ in rows if before is not None or step < restart]
    return next((step for step in sorted(steps, reverse=True) if np.array_equal(rows[step, rank], opening)), None)
