"""What the page of the gallery counts, against numbers computed by hand."""

import pytest
from benchmarks.gallery.less import without_causes, without_checks
from benchmarks.gallery.statistics import Bin, brier_score, confusion, reliability, risk
from gallery.scoring import Score

from trueline.judge.check_run import CheckReport
from trueline.schema.finding import Finding
from trueline.schema.judged import AskedQuestion, Judged


def said(id: str, cause: str, found: str, probability: float) -> Score:
    return Score(id, "", "fault", 2, cause=cause, cause_found=found, probability=probability)


SCORES = [
    said("R8", "divided-twice", "named", 0.9),
    said("R8.fsdp", "divided-twice", "named", 1.0),
    said("R8.sum", "divided-twice", "wrong", 0.8),
    said("R9", "starts-differ", "abstained", 0.4),
    said("D1.one-replica", "sampler-rank-wrong", "named", 0.6),
    said("N4", "unknown", "abstained", 0.7),
    said("N1", "", "none", 0.0),
    Score("healthy.ddp", "", "control", 2),
]


def test_confusion_has_the_true_cause_beside_the_one_that_was_claimed():
    assert confusion(SCORES) == {
        ("divided-twice", "divided-twice"): 2,
        ("not-divided", "divided-twice"): 1,
        ("buffers-not-synchronised", "abstained"): 1,
        ("sampler-rank-wrong", "sampler-rank-wrong"): 1,
        ("value-not-finite-in-data", "abstained"): 1,
        ("gradients-grow-with-depth", "none"): 1,
    }


def test_reliability_holds_mean_probability_against_the_share_that_is_right():
    assert reliability(SCORES, (0.0, 0.5, 0.9, 1.0)) == [
        Bin(0.0, 0.5, 1, 0.4, 0.0),
        Bin(0.5, 0.9, 2, pytest.approx(0.7), 0.5),
        Bin(0.9, 1.0, 2, pytest.approx(0.95), 1.0),
    ]
    # of the squares of 0.1, 0, 0.8, 0.4 and 0.4
    assert brier_score(SCORES) == pytest.approx(0.194)


def test_risk_counts_independent_faults_and_bounds_the_wrong_ones():
    every = risk(SCORES, 0.0)
    assert (every.runs, every.wrong_runs, every.faults, every.wrong_faults) == (5, 2, 4, 2)
    surest = risk(SCORES, 0.9)
    assert (surest.runs, surest.wrong_runs, surest.faults, surest.wrong_faults) == (2, 0, 1, 0)
    assert surest.bound == pytest.approx(0.95)  # (1 - p)^1 = 0.05
    assert risk(SCORES, 1.1).bound == 1.0


def test_less_to_go_by_is_less_to_find_and_less_to_know():
    scaled = Finding("worker-scale", "error", "scaled", (2,), 32, 92, evidence={"kind": ["loss-too"]})
    longer = Finding("worker-grad-norm-outlier", "warning", "longer", (2,), 32, 92)
    asked = AskedQuestion("workers", (scaled.code, longer.code))
    report = CheckReport("run", (scaled, longer), Judged((asked,), (0, 1, 2, 3), 4, 100, (0, 99)))
    assert dict(without_causes({"S1": report}, of_family=False)) != {"S1": "named"}
    assert [outcome for _, outcome in without_checks({"S1": report})] == ["named", "abstained"]
