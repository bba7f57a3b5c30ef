"""What optimizers held at the steps that were followed."""

from __future__ import annotations

from trueline.judge.compared_ranks import data_parallel_ranks
from trueline.judge.stats.memoize import memoized
from trueline.laws.optimizer.columns import Holdings
from trueline.schema.errors import CannotTell
from trueline.store.reader import Run


@memoized
def holdings(run: Run) -> tuple[Holdings, ...]:
    """Those of the first rank, by step; raises ``CannotTell`` without any."""
    ranks = data_parallel_ranks(run)[:1]
    rows = [Holdings.from_json(text) for (_, rank), text in sorted(run.texts("holdings").items()) if rank in ranks]
    if not rows:
        raise CannotTell("no step was followed from one update to the next", reason="not-recorded")
    return tuple(rows)
