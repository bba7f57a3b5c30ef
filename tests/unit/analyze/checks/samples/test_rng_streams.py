"""rng-streams: which streams are equal, and whether the plan wanted that."""

import pytest
from tests.unit.healthy_run import healthy_rows, write_run, write_starts

from trueline.analyze.checks.samples import rng_streams
from trueline.schema.errors import CannotTell


def test_it_says_what_is_equal(tmp_path):
    (finding,) = rng_streams.check(write_run(tmp_path, healthy_rows(3, 4)))

    assert finding.severity == "info"
    assert finding.claim == (
        "The workers' random streams have equal states of python and numpy and different states of torch."
    )
    assert finding.evidence["torch"] == {"state": "different", "used": True}
    assert finding.evidence["python"] == {"state": "equal", "used": False}


def test_equal_streams_that_were_declared_different_are_a_warning(tmp_path):
    rows = healthy_rows(2, 4)
    for (step, _), row in rows.items():
        row["rng_torch"] = step
    (finding,) = rng_streams.check(write_run(tmp_path, rows, plan={"rng": "different"}))

    assert (finding.severity, finding.step_first) == ("warning", 0)
    assert finding.claim == (
        "The workers' random streams have equal states of torch, and the plan declares different ones."
    )


def test_streams_that_nobody_draws_from_contradict_nothing(tmp_path):
    (finding,) = rng_streams.check(write_run(tmp_path, healthy_rows(2, 4), plan={"rng": "different"}))
    assert finding.severity == "info"


def test_streams_that_part_name_the_step(tmp_path):
    rows = healthy_rows(2, 6)
    for (step, rank), row in rows.items():
        row["rng_torch"] = step if step < 3 else 10 * step + rank
    (finding,) = rng_streams.check(write_run(tmp_path, rows, plan={"rng": "equal"}))

    assert (finding.severity, finding.step_first) == ("warning", 3)
    assert finding.evidence["torch"]["changes_at"] == 3
    assert "sometimes equal states of torch" in finding.claim


def test_declared_equal_and_equal_is_an_info(tmp_path):
    rows = healthy_rows(2, 4)
    for (step, _), row in rows.items():
        row["rng_torch"] = step
    (finding,) = rng_streams.check(write_run(tmp_path, rows, plan={"rng": "equal"}))
    assert finding.severity == "info"


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
