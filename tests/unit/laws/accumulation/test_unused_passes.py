"""Facts of backward passes that no update used, and when they are marked."""

import pytest
from tests.unit.healthy_run import healthy_rows, write_run

from trueline.laws.accumulation.facts import SUBJECTS, unused_passes

(SUBJECT,) = SUBJECTS
(MARK,) = SUBJECT.marks


def passes(num_steps, *, begun, micros=8):
    """Rows of one rank, with ``begun(step)`` backward passes at each step, of which an update used ``micros``."""
    rows = healthy_rows(1, num_steps)
    for (step, _), row in rows.items():
        row |= {"passes_begun": begun(step), "num_micro": micros}
    return rows


def test_the_end_of_an_epoch_that_is_thrown_away(tmp_path):
    run = write_run(tmp_path, passes(8, begun=lambda step: 13 if step in (2, 4, 6) else 8))
    text, value = unused_passes(run)
    assert text == "no update used the gradients of 15 of 79 backward passes: cleared before, at steps 2, 4 and 6"
    assert value == {"unused": 15, "passes": 79, "num_steps": 3, "num_looked": 8}
    assert MARK.applies(value)


@pytest.mark.parametrize(
    ("why", "begun"),
    [("a second loss at each step", lambda step: 9), ("once", lambda step: 9 if step == 3 else 8)],
)
def test_is_not_marked(tmp_path, why, begun):
    _, value = unused_passes(write_run(tmp_path, passes(8, begun=begun)))
    assert not MARK.applies(value), why


def test_nothing_is_said_where_all_are_used(tmp_path):
    assert unused_passes(write_run(tmp_path, passes(8, begun=lambda step: 8))) is None


def test_nothing_is_said_where_a_scaler_leaves_out_updates(tmp_path):
    rows = passes(8, begun=lambda step: 13 if step in (2, 4) else 8)
    for row in rows.values():
        row["loss_scale"] = 1024.0
    assert unused_passes(write_run(tmp_path, rows)) is None
