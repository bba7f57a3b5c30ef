"""evaluation-mode: a model that stays in it from some step on is told, one that goes back or began so is not."""

import pytest
from tests.unit.healthy_run import healthy_rows, write_run

from trueline.laws.modes import evaluation_mode
from trueline.schema.errors import CannotTell


def run_of(path, evaluates, ranks=(0, 1)):
    """A Run in which ``evaluates`` (by step, None: not sampled) holds on ``ranks``, and on others no rank evaluates."""
    rows = healthy_rows(2, len(evaluates))
    for (step, rank), row in rows.items():
        if evaluates[step] is not None:
            row["evaluates"] = evaluates[step] if rank in ranks else 0
    return write_run(path, rows)


def test_a_model_that_stays_in_evaluation_mode_is_told_since_when(tmp_path):
    (finding,) = evaluation_mode.check(run_of(tmp_path, [0, 0, None, None, 1, 1, None, 1]))
    assert (finding.severity, finding.ranks, finding.step_first, finding.step_last) == ("warning", (0, 1), 4, 7)
    assert finding.evidence["onset_interval"] == [2, 4]


def test_a_model_that_stays_so_until_each_epoch_ends_is_told(tmp_path):
    (finding,) = evaluation_mode.check(run_of(tmp_path, [0, 0, 1, 1, 1, 0, None, 1, 1, 1, 0, 0]))
    assert (finding.severity, finding.step_first, finding.step_last) == ("warning", 2, 9)
    assert "2 times from step 2 to 9" in finding.claim


@pytest.mark.parametrize(
    "evaluates",
    [
        [1, 1, 1, 1, 1],  # from the first step on
        [0, 0, 1, 1, 1, 0],  # it goes back
        [0, 0, 0, 1, 1],  # too few
        [0, 1, 0, 1, 1, 0, 1, 0],  # one step or two, again and again
        [1, 1, 1, 0, 1, 1, 1, 0],  # once after the start
        [0, 0, 0, 0, 0],
    ],
)
def test_others_are_left_alone(tmp_path, evaluates):
    assert evaluation_mode.check(run_of(tmp_path, evaluates)) == []


def test_a_rank_alone_is_told_by_another_check(tmp_path):
    assert evaluation_mode.check(run_of(tmp_path, [0, 0, 1, 1, 1], ranks=(1,))) == []


def test_without_modes_it_cannot_tell(tmp_path):
    with pytest.raises(CannotTell, match="no forward pass"):
        evaluation_mode.check(run_of(tmp_path, [None, None]))
