"""Replicas that part and are equal again in a rhythm update by themselves on purpose; others are judged."""

import numpy as np
import pytest
from tests.unit.healthy_run import healthy_rows, write_run

from trueline.judge.series.local_updates import averaging_period
from trueline.laws.replicas import replica_drift
from trueline.schema.errors import CannotTell


def parted(path, *, equal, num_steps=40, ranks=3):
    """A Run whose replicas hold values of their own but before the updates of the steps ``equal``."""
    rows = healthy_rows(ranks, num_steps)
    for (step, rank), row in rows.items():
        if step not in equal:
            row["param_digests"] = row["param_digests"] + np.uint64(1 + rank)
    return write_run(path, rows)


@pytest.mark.parametrize(("first", "every"), [(0, 8), (0, 5), (3, 4)])
def test_a_rhythm_is_seen_from_wherever_it_begins(tmp_path, first, every):
    run = parted(tmp_path, equal={0, *range(first, 40, every)})
    assert averaging_period(run) == every
    with pytest.raises(CannotTell, match=f"equal again every {every} steps") as told:
        replica_drift.check(run)
    assert told.value.reason == "by-design"


@pytest.mark.parametrize(
    "equal",
    [
        set(range(8)),  # they part for good
        {0, 8, 16},  # too few times
        {0, 8, 16, 17, 32},  # no rhythm
        {0, 8, 16, 32},  # one turn of it is left out
        set(range(40)),  # they never part
    ],
)
def test_no_rhythm_is_seen_where_there_is_none(tmp_path, equal):
    assert averaging_period(parted(tmp_path, equal=equal)) is None
