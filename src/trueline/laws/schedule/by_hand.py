"""Learning rates that no scheduler of torch sets.

T updates, G parameter groups.
"""

from __future__ import annotations

import numpy as np

from trueline.judge.compared_ranks import data_parallel_ranks
from trueline.laws.schedule.followed import UPDATES_AT_LEAST
from trueline.schema.errors import CannotTell
from trueline.store.reader import Run


def rates_by_hand(run: Run) -> tuple[np.ndarray, np.ndarray]:
    """Steps [T] of the updates since the last start on the first rank, and the rates [T, G]; raises ``CannotTell``
    where a scheduler of torch drives them, or where they stay.
    """
    ranks = data_parallel_ranks(run)[:1]
    begin = max(run.restarts, default=0)
    if any(run.has(column) for column in ("schedule_facts", "schedule_epochs", "schedule_idle")):
        raise CannotTell("a scheduler of torch sets the learning rate", reason="by-design")
    rows = {step: row for (step, _), row in run.lists("lr", ranks=ranks).items() if len(row) and step >= begin}
    if len({len(row) for row in rows.values()}) != 1 or len(rows) < UPDATES_AT_LEAST or run.models:
        raise CannotTell("optimizers or their groups come and go, or too few updates were made", reason="by-design")
    steps_T, rates_TG = np.array(sorted(rows)), np.stack([rows[step] for step in sorted(rows)])
    if np.all(rates_TG == rates_TG[0]):
        raise CannotTell("the learning rate stays as it is", reason="by-design")
    return steps_T, rates_TG
