"""rng-streams: which streams are equal, and whether the plan wanted that."""

import pytest
from tests.unit.healthy_run import healthy_rows, write_run, write_starts

from trueline.laws.random_streams import rng_streams
from trueline.schema.errors import CannotTell


def test_streams_that_stay_as_they_are_are_nothing_to_report(tmp_path):
    """Nearly every job has one seed on all ranks, or one for each: only who declared one of them is contradicted."""
    assert rng_streams.check(write_run(tmp_path / "different", healthy_rows(3, 4))) == []
    rows = healthy_rows(3, 4)
    for (step, _), row in rows.items():
        row["rng_torch"] = step
    assert rng_streams.check(write_run(tmp_path / "equal", rows)) == []


def test_a_stream_that_is_drawn_from_and_parts_while_the_job_runs_is_an_info(tmp_path):
    rows = healthy_rows(2, 6)
    for (step, rank), row in rows.items():
        row["rng_torch"] = step if step < 3 else 10 * step + rank
        row["rng_python"] = 7 * step + (rank if step > 1 else 0)  # a logger of rank 0 draws
    (finding,) = rng_streams.check(write_run(tmp_path, rows))

    assert (finding.severity, finding.step_first) == ("info", 3)
    assert finding.claim == "The workers' random streams of torch, which are drawn from, become different at step 3."
    assert finding.evidence == {"torch": {"state": "mixed", "used": True, "changes_at": 3}}


def test_equal_streams_that_were_declared_different_are_a_warning(tmp_path):
    rows = healthy_rows(2, 4)
    for (step, _), row in rows.items():
        row["rng_torch"] = step
    (finding,) = rng_streams.check(write_run(tmp_path, rows, plan={"rng": "different"}))

    assert (finding.severity, finding.step_first) == ("warning", 0)
    assert finding.claim == ("Random seeds: torch equal on all ranks, and the plan declares different ones.")


def test_streams_that_nobody_draws_from_contradict_nothing(tmp_path):
    rows = healthy_rows(2, 4)
    for row in rows.values():
        row["rng_torch"] = 1
    assert rng_streams.check(write_run(tmp_path, rows, plan={"rng": "different"})) == []


def test_streams_that_part_name_the_step(tmp_path):
    rows = healthy_rows(2, 6)
    for (step, rank), row in rows.items():
        row["rng_torch"] = step if step < 3 else 10 * step + rank
    (finding,) = rng_streams.check(write_run(tmp_path, rows, plan={"rng": "equal"}))

    assert (finding.severity, finding.step_first) == ("warning", 3)
    assert finding.evidence["torch"]["changes_at"] == 3
    assert "torch sometimes equal" in finding.claim


def test_declared_equal_and_equal_is_nothing_to_report(tmp_path):
    rows = healthy_rows(2, 4)
    for (step, _), row in rows.items():
        row["rng_torch"] = step
    assert rng_streams.check(write_run(tmp_path, rows, plan={"rng": "equal"})) == []


@pytest.mark.parametrize(
    ("before", "after", "declared", "warns"),
    [
        ("different", "equal", None, True),
        ("different", "equal", "equal", False),
        ("different", "different", None, False),
        ("equal", "equal", None, False),
        ("equal", "different", None, False),
    ],
)
def test_streams_that_become_equal_when_the_job_is_started_again_are_a_warning(
    tmp_path, before, after, declared, warns
):
    rows = healthy_rows(2, 12)
    for (step, rank), row in rows.items():
        row["rng_numpy"] = rank + 1
        now = before if step < 6 else after
        row["rng_torch"] = 10 * step + 1 + (rank if now != "equal" else 0)
    plan = {} if declared is None else {"rng": declared}
    early, late = ({key: row for key, row in rows.items() if (key[0] < 6) == first} for first in (True, False))
    run = write_starts(tmp_path, [(0, early), (6, late)], plan=plan)
    assert run.restarts == [6]
    merged = [finding for finding in rng_streams.check(run) if "started again" in finding.claim]
    assert [(finding.severity, finding.step_first) for finding in merged] == [("warning", 6)] * warns


def test_without_digests_it_cannot_tell(tmp_path):
    with pytest.raises(CannotTell, match="random stream"):
        rng_streams.check(write_run(tmp_path, {(0, 0): {"loss": 1.0}, (0, 1): {"loss": 1.0}}))
