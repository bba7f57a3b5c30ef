"""Findings of one fault are one incident, those of two are two, and the telling one comes first."""

import graphlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trueline.judge.incidents import advice_of, incidents_of
from trueline.judge.registry import installed_checks
from trueline.schema.finding import SEVERITIES, Finding
from trueline.schema.law import BESIDE, codes, findings_of

EXPLAINS = {code: facts.explains for code, facts in codes().items() if facts.explains}


def finding(code, ranks, step, severity="warning", *, crossed=None, advice=()):
    evidence = {} if crossed is None else {"crossed_step": crossed}
    return Finding(code, severity, f"{code} of {ranks}.", ranks, step, evidence=evidence, next=tuple(advice))


def places(*findings):
    return [incident.findings for incident in incidents_of(findings)]


def test_what_one_brings_with_it_is_one_incident_and_the_telling_one_leads():
    scaled = finding("worker-scale", (2,), 32, "error")
    longer = finding("worker-grad-norm-outlier", (2,), 30, crossed=41)
    apart = finding("dispersion-high", (0, 1, 2, 3), 31, crossed=60)
    (incident,) = incidents_of([longer, apart, scaled])

    assert incident.findings == (2, 0, 1)
    assert (incident.ranks, incident.step_first, incident.severity) == ((2,), 32, "error")
    assert incident.title == scaled.claim
    assert list(incident.to_json()) == ["ranks", "step_first", "severity", "findings", "title"]


def test_effects_of_effects_belong_to_the_first_cause():
    own = finding("gradient-not-reduced", (0, 1), 5, "error")
    drift = finding("replica-drift", (0, 1), 50, "error")
    loss = finding("worker-loss-outlier", (1,), 60)
    assert places(own, drift, loss) == [(0, 1, 2)]


def test_an_effect_cannot_come_before_its_cause():
    drift = finding("replica-drift", (0, 1), 50, "error")
    early = finding("worker-loss-outlier", (1,), 3, crossed=20)
    assert places(drift, early) == [(0,), (1,)]


def test_a_range_that_fills_and_its_overflow_are_one_and_the_overflow_leads():
    filling, overflow = finding("range-saturation", (0, 1), 7), finding("overflow-origin", (1,), 8, "error")
    assert places(filling, overflow) == [(1, 0)]


def test_other_ranks_and_other_steps_are_other_incidents():
    one = finding("worker-loss-outlier", (1,), 10)
    other_rank = finding("worker-loss-outlier", (2,), 10)
    later = finding("token-imbalance", (1,), 90)
    assert places(one, other_rank, later) == [(0,), (1,), (2,)]


def test_the_same_ranks_since_the_same_step_are_one():
    assert places(finding("loss-spike", (), 7), finding("grad-spike", (), 7)) == [(1, 0)]
    assert places(finding("a", (1,), 7), finding("b", (1,), 7)) == [(0, 1)]


def test_a_warning_never_leads_an_error_away():
    setting = finding("rank-config-differs", (0, 1), 0, "warning")
    drift = finding("replica-drift", (0, 1), 50, "error")
    assert places(setting, drift) == [(1,), (0,)]


def test_information_is_in_no_incident():
    assert places(finding("rng-streams", (0, 1), 0, "info"), finding("a", (1,), 7)) == [(1,)]


def test_advice_comes_once_and_not_for_what_is_explained():
    scaled = finding("worker-scale", (2,), 32, "error", advice=["Divide.", "Look."])
    longer = finding("worker-grad-norm-outlier", (2,), 32, advice=["Look elsewhere."])
    beside = finding("token-imbalance", (2,), 32, advice=["Look.", "Weigh."])
    assert advice_of([scaled, longer, beside]) == ("Divide.", "Look.", "Weigh.")


def test_every_code_that_explains_is_one_that_is_found_and_none_explains_itself():
    known = {check.code for check in installed_checks()} | set(findings_of(*BESIDE))
    assert set(EXPLAINS) | {effect for effects in EXPLAINS.values() for effect in effects} <= known
    graphlib.TopologicalSorter(EXPLAINS).prepare()


@pytest.mark.parametrize("code", sorted(EXPLAINS))
def test_each_edge_joins(code):
    for effect in EXPLAINS[code]:
        assert places(finding(effect, (0, 1), 4), finding(code, (1,), 3)) == [(1, 0)]


CODES = st.sampled_from(sorted(EXPLAINS))
FINDINGS = st.builds(
    finding,
    CODES,
    st.sets(st.integers(0, 3)).map(lambda ranks: tuple(sorted(ranks))),
    st.none() | st.integers(0, 9),
    st.sampled_from(SEVERITIES),
)


@given(st.lists(FINDINGS, max_size=8))
def test_every_grave_finding_is_in_one_incident_and_the_gravest_leads_all(findings):
    told = [place for incident in incidents_of(findings) for place in incident.findings]
    grave = [place for place, each in enumerate(findings) if each.is_grave]
    assert sorted(told) == grave
    if grave:
        assert incidents_of(findings)[0].severity == min((findings[p].severity for p in grave), key=SEVERITIES.index)
