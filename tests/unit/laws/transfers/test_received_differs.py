"""received-differs: what arrives otherwise is found at its number, whatever the shift between both sides."""

import pytest
from tests.unit.healthy_run import write_run

from trueline.laws.transfers import received_differs
from trueline.schema.errors import CannotTell


def rows_of(num=40, *, lost=(), shift=0, swapped=()):
    """Rank 0 sends rank 1 a tensor in each step; rank 1 has begun to count ``shift`` later, and loses those numbers."""
    rows = {}
    for step in range(num):
        number = swapped[1 - swapped.index(step)] if step in swapped else step
        arrived = 7 if step in lost else 1000 + number
        rows[step, 0] = {"sent": [1, step, 1000 + step]}
        rows[step, 1] = {"received": [0, step - shift, arrived]} if step >= shift else {}
    return rows


@pytest.mark.parametrize("shift", [0, 3])
def test_transfers_that_lost_data_are_counted(tmp_path, shift):
    (finding,) = received_differs.check(write_run(tmp_path, rows_of(lost=(5, 9, 30), shift=shift)))
    assert finding.claim == (
        f"What rank 1 received of rank 0 is not what rank 0 sent in 3 of {40 - shift} transfers that were compared, "
        "first about step 5."
    )
    assert (finding.severity, finding.ranks, finding.step_last) == ("error", (0, 1), 30)
    assert (finding.measured, finding.false_alarm_rate) == (3.0, 0.0)


def test_what_arrives_as_it_was_sent_or_in_another_order_is_silent(tmp_path):
    assert received_differs.check(write_run(tmp_path / "whole", rows_of())) == []
    assert received_differs.check(write_run(tmp_path / "order", rows_of(swapped=(8, 9)))) == []


def test_each_tag_has_an_order_of_its_own(tmp_path):
    """Rank 1 has begun to count those of one tag three later, and those of another one with the other side."""
    tag, rows = 5 << 32, rows_of(shift=3, lost=(20,))
    for (step, rank), row in rows.items():
        if rank:
            row["received"] = [*row.get("received", []), 0, tag + step, 5000 + step]
        else:
            row["sent"] = [*row["sent"], 1, tag + step, 5000 + step]
    # beyond the first each 64th alone is digested: a shift of the other tag would hold it to another transfer
    rows[200, 0], rows[200, 1] = {"sent": [1, tag + 128, 1]}, {"received": [0, tag + 128, 1]}
    rows[201, 0], rows[201, 1] = {"sent": [1, 131, 2]}, {"received": [0, 128, 2]}
    (finding,) = received_differs.check(write_run(tmp_path, rows))
    assert (finding.measured, finding.evidence["compared"]) == (1.0, 37 + 40 + 2)


def test_where_nothing_belongs_together_nothing_is_said(tmp_path):
    with pytest.raises(CannotTell, match="too few transfers"):
        received_differs.check(write_run(tmp_path / "lost", rows_of(lost=range(36))))
    rows = rows_of()
    for (_, rank), row in rows.items():
        if rank:
            row.clear()
    with pytest.raises(CannotTell, match="no rank was seen to send"):
        received_differs.check(write_run(tmp_path / "none", rows))
