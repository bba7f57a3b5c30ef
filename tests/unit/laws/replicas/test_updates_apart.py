"""updates-apart: which rank left out or repeated an update, and that nothing is compared from there on."""

import numpy as np
import pytest
from tests.unit.healthy_run import healthy_rows, write_run, write_starts

from trueline.judge.check_run import check
from trueline.judge.series import iterations
from trueline.judge.series.iterations import may_part, parting_of
from trueline.laws.replicas import updates_apart
from trueline.schema.errors import CannotTell
from trueline.store.reader import Run


def _rows(num_ranks, num_steps, updates, *, rank=1, at=6, per_update=1):
    """``rank`` makes so many ``updates`` of iteration ``at``; all rows hold the samples of their own iterations."""
    rows = {}
    for row_rank in range(num_ranks):
        step = 0
        for iteration in range(num_steps):
            for _ in range(updates if (row_rank, iteration) == (rank, at) else 1):
                rows[step, row_rank] = {
                    "passes": per_update * (iteration + 1),
                    "lr": [0.1 / (1 + iteration)],
                    "param_digests": np.full(4, 7 + iteration + 100 * (row_rank == rank and iteration > at), np.uint64),
                    "sample_digests": np.array([1 + num_ranks * iteration + row_rank], np.uint64),
                }
                step += 1
    return rows


@pytest.mark.parametrize("num_ranks", [2, 3])
@pytest.mark.parametrize("per_update", [1, 4])
@pytest.mark.parametrize(("updates", "words"), [(0, "left out the update of step 6"), (2, "made the update of step 6")])
def test_the_rank_and_the_first_step_are_named(tmp_path, num_ranks, per_update, updates, words):
    (finding,) = updates_apart.check(write_run(tmp_path, _rows(num_ranks, 20, updates, per_update=per_update)))

    assert (finding.code, finding.severity, finding.ranks) == ("updates-apart", "error", (1,))
    assert finding.step_first == 6
    assert finding.claim.startswith(f"Rank 1 {words}")
    assert finding.false_alarm_rate == 0


@pytest.mark.parametrize("updates", [0, 2])
def test_it_is_the_only_error_and_comes_first(tmp_path, updates):
    """Learning rates, digests of parameters and samples of one step number are those of other iterations from there."""
    report = check(write_run(tmp_path, _rows(2, 20, updates)))
    assert [finding.code for finding in report.findings if finding.severity == "error"] == ["updates-apart"]
    assert not any("killed" in note for note in report.notes)


def test_the_very_first_update_may_be_left_out(tmp_path):
    (finding,) = updates_apart.check(write_run(tmp_path, _rows(2, 10, 0, at=0)))
    assert (finding.ranks, finding.step_first) == ((1,), 0)


def test_two_ranks_of_which_none_is_like_the_others_updates_are_undecided(tmp_path):
    rows = _rows(2, 10, 1)
    for (step, rank), row in rows.items():
        row["passes"] += (step >= 4) * (1 + rank)
    (finding,) = updates_apart.check(write_run(tmp_path, rows))
    assert (finding.ranks, finding.step_first) == ((0, 1), 4)
    assert "undecided" in finding.claim


@pytest.mark.parametrize("rows_at_once", [1, 7, 8, 10**6])
def test_whether_workers_may_part_is_seen_a_few_steps_at_a_time(tmp_path, monkeypatch, rows_at_once):
    monkeypatch.setattr(iterations, "ROWS_AT_ONCE", rows_at_once)
    for name, updates in (("apart", 0), ("healthy", 1)):
        path = write_run(tmp_path / name, _rows(2, 20, updates, at=18)).path
        assert may_part(Run(path)) is (name == "apart")


def test_a_start_of_the_job_counts_anew(tmp_path):
    """Counts begin at one again on all ranks; the rank that leaves out an update afterwards is found by its own."""
    rows = _rows(2, 20, 0, at=15)
    for (step, _), row in rows.items():
        row["passes"] -= 10 * (step >= 10)
    early, late = ({key: row for key, row in rows.items() if (key[0] < 10) == first} for first in (True, False))
    (finding,) = updates_apart.check(write_starts(tmp_path, [(0, early), (10, late)]))
    assert (finding.ranks, finding.step_first) == ((1,), 15)


def test_averages_by_hand_are_no_clock_of_replicas_that_update_by_themselves(tmp_path):
    run = write_run(tmp_path, _rows(2, 20, 0), adapter="manual")
    assert parting_of(run) is not None
    again = Run(run.path)
    for env in again.env.values():
        env.local_updates = "the plan"
    assert parting_of(again) is None


def test_ranks_in_step_are_silent(tmp_path):
    assert updates_apart.check(write_run(tmp_path, _rows(3, 20, 1))) == []


def test_without_counts_it_cannot_tell(tmp_path):
    with pytest.raises(CannotTell, match="no backward pass"):
        updates_apart.check(
            write_run(tmp_path, {key: row | {"passes": None} for key, row in healthy_rows(2, 4).items()})
        )
