"""Which findings of another run are the one that a trial is about, and when a run without it is clean."""

from dataclasses import replace

import pytest
from tests.synthetic_runs import write_run

from trueline.schema.errors import InputError
from trueline.schema.finding import Finding
from trueline.store.reader import Run
from trueline.trials.frame.same_fault import Outcome, TargetFinding, outcome_of, target_of

FOUND = Finding(
    "worker-loss-outlier", "warning", "Rank 2.", ranks=(2,), sites=("3.0/r2/loss/loss#0:out0",), measured=4.0,
    expected=1.0, step_first=3,
)  # fmt: skip


@pytest.mark.parametrize(
    ("other", "is_same"),
    [
        ({}, True),
        ({"code": "worker-scale"}, False),
        ({"sites": ("3.0/r2/grad/w#0:out0",)}, False),
        ({"sites": ("9.0/r0/loss/loss#0:out0",)}, True),  # another step: that is no other fault
        ({"ranks": (1,)}, False),
        ({"ranks": (1, 2)}, True),
        ({"ranks": ()}, True),
        ({"measured": 2.6}, True),
        ({"measured": 2.4}, False),  # less than half as far from what was expected
        ({"measured": -0.6}, True),
        ({"measured": None}, True),
    ],
)
def test_it_is_the_same_by_code_kind_of_site_ranks_and_half_of_the_measure(other, is_same):
    wanted = TargetFinding.from_finding(FOUND, num_ranks=4)
    assert wanted.is_shown_by(replace(FOUND, **other)) is is_same


def test_a_job_of_one_rank_has_no_ranks_to_compare():
    assert TargetFinding.from_finding(FOUND, num_ranks=1).is_shown_by(replace(FOUND, ranks=(0,)))


def test_the_first_incident_is_what_a_trial_is_about_unless_a_code_is_given(tmp_path):
    other = replace(FOUND, code="worker-scale", severity="info", measured=None)
    run = Run(write_run(tmp_path / "run", findings=(FOUND, other)))
    assert target_of(run).code == "worker-loss-outlier"
    assert target_of(run, "worker-scale").code == "worker-scale"
    with pytest.raises(InputError, match=r"'replica-drift' is no finding of Run .*worker-loss-outlier"):
        target_of(run, "replica-drift")
    with pytest.raises(InputError, match="shows no fault"):
        target_of(Run(write_run(tmp_path / "healthy")))


def test_silence_is_no_health(tmp_path):
    wanted = TargetFinding.from_finding(FOUND, num_ranks=4)
    shows = str(write_run(tmp_path / "shows", findings=(replace(FOUND, measured=5.0),)))
    clean = str(write_run(tmp_path / "clean", num_steps=40))
    assert (outcome_of(shows, wanted).showed, outcome_of(shows, wanted).measured) == (True, 5.0)
    assert outcome_of(shows, wanted, ended="it ended with status 1").showed is True
    assert outcome_of(clean, wanted, last_step=39).showed is False
    early = outcome_of(clean, wanted, last_step=60)
    assert (early.showed, early.why) == (None, "it ended after step 39, and step 60 is needed")
    assert early.then == "Ask for no more steps than it makes: --steps 40."
    assert outcome_of(clean, wanted, ended="it ended with status 1").showed is None
    unjudged = outcome_of(clean, replace(wanted, code="clip-differs"))
    assert unjudged.showed is None
    assert "could not be judged: no call of clip_grad_norm_" in unjudged.why
    assert outcome_of(str(tmp_path / "none"), wanted).showed is None


def test_what_begins_after_the_last_step_of_a_run_is_not_of_it(tmp_path):
    """A run goes on for three updates, until its last step is on disk."""
    wanted = TargetFinding.from_finding(FOUND, num_ranks=4)
    run = str(write_run(tmp_path / "late", findings=(replace(FOUND, step_first=38),), num_steps=40))
    assert outcome_of(run, wanted, last_step=38).showed is True
    assert outcome_of(run, wanted, last_step=36) == Outcome(False)
