"""The verdict says what findings say and no more, and a clean one says what was not looked at."""

from dataclasses import replace

import pytest

from trueline.judge.check_run import CheckReport
from trueline.render.report.page_summary import Summary, headline, summary
from trueline.schema.finding import Finding
from trueline.schema.judged import AskedQuestion as Asked
from trueline.schema.judged import Judged, NotRun, Question, asked_of
from trueline.schema.text.words import uncapitalized

OVERLAP = Finding("shard-overlap", "error", "Rank 0 shares samples.", (0,), 10, 149, next=("Set one seed.",))
DRIFT = Finding("replica-drift", "error", "Rank 2 drifts.", (2,), 4, 149, next=("Broadcast.", "Look."))
SEED = Finding("rank-config-differs", "warning", "Seeds differ.", (0,), 0, None, next=("Set one seed.",))
STREAMS = Finding("rng-streams", "info", "Streams are equal.", (0, 1, 2, 3), 0, 9)
QUESTION_OF: dict[str, Question] = {
    **dict.fromkeys(("shard-overlap",), "data"),
    **dict.fromkeys(("replica-drift",), "replicas"),
    **dict.fromkeys(("worker-loss-outlier", "worker-silent"), "workers"),
    **dict.fromkeys(("worker-nonfinite",), "nonfinite"),
}
EXACT = ("shard-overlap", "worker-silent", "worker-nonfinite")


def report_of(*findings: Finding, checks: tuple[str, ...] = EXACT, num_steps: int = 150, ranks: int = 4) -> CheckReport:
    judged = Judged(
        asked_of(checks, [NotRun("replica-drift", "no digests")], QUESTION_OF),
        ranks=tuple(range(ranks)),
        world_size=ranks,
        num_steps=num_steps,
        steps=(0, num_steps - 1) if num_steps else None,
    )
    return CheckReport("exp", findings, judged)


def of(*findings: Finding, **facts) -> Summary:
    return summary(report_of(*findings, **facts))


def test_errors_say_who_since_when_and_what_to_do():
    said = of(DRIFT, OVERLAP, SEED)

    assert said.verdict.status == "out"
    assert said.verdict.line == "Fault found: rank 2, since step 4; 3 findings in 3 incidents."
    assert said.what == "Rank 2 drifts."
    assert said.next == ("Broadcast.", "Set one seed.")


def test_what_is_to_be_confirmed_stands_in_the_verdict_and_what_is_known_does_not():
    weights = Finding(
        "token-weights-differ", "confirm", "A token weighs 2 times one of rank 1 at step 3: means.", (0, 1), 3
    )
    said = of(STREAMS, weights, replace(weights, code="loss-misapplied", claim="Model critic: Two losses."))
    assert said.verdict.status == "clear"
    assert "; 2 things to confirm: a token weighs 2 times one of rank 1 at step 3; model critic: Two losses." in (
        said.verdict.line
    )
    assert "to confirm" not in of(STREAMS).verdict.line


@pytest.mark.parametrize(
    ("claim", "said"),
    [
        ("Two losses; one is 0.", "two losses, one is 0"),
        ("AdamW holds `head`; it rests: nothing moves.", "AdamW holds `head`, it rests"),
        ("FC.weight makes 1,000 logits.", "FC.weight makes 1,000 logits"),
    ],
)
def test_between_two_things_to_confirm_alone_stands_a_semicolon(claim, said):
    line = of(Finding("outputs-unused", "confirm", claim), Finding("labels-sorted", "confirm", "Sorted.")).verdict.line
    assert f"; 2 things to confirm: {said}; sorted." in line


@pytest.mark.parametrize(
    ("claim", "head"),
    [
        ("60 of 120 updates had the learning rate 0 (50%): steps 60-119.", "60 of 120 updates had the learning rate 0"),
        ("The rate was at its end at step 60, as it was made for fewer: 60.", "the rate was at its end at step 60"),
        ("Head: 12 of its 16 rows are as they began.", "head: 12 of its 16 rows are as they began"),
        ("The gradients of 2 (0.bias and 2.bias) are 0 from step 7 on.", "the gradients of 2 are 0 from step 7 on"),
        ("Loss 22 at step 0, where chances have 1: it stays.", "loss 22 at step 0, where chances have 1"),
    ],
)
def test_above_the_list_of_what_is_to_confirm_stand_heads(claim, head):
    verdict = of(Finding("unusual", "confirm", claim)).verdict
    assert f"; 1 thing to confirm: {head}." in verdict.brief
    assert uncapitalized(claim.rstrip(".")) in verdict.line


def test_what_a_finding_tells_is_not_asked_as_well():
    asked = Finding("token-weights-differ", "confirm", "A token weighs 2 times another.", (0, 1), 3, 9)
    told = Finding("token-imbalance", "warning", "A token of rank 0 counts twice.", (0,), 5, 9)
    assert not report_of(told, asked).to_confirm
    assert report_of(replace(told, code="worker-silent"), asked).to_confirm == (asked,)


def test_of_one_process_no_rank_is_named():
    report = of(replace(SEED, step_first=3), ranks=1)
    assert report.verdict.line == "Probable fault: since step 3; 1 finding."


def test_warnings_alone_are_only_probable():
    assert of(SEED, STREAMS).verdict.line == "Probable fault: rank 0, since step 0; 1 finding."


@pytest.mark.parametrize(
    ("interval", "since"), [([45, 48], "step 48 (between 45 and 48)"), ([48, 48], "step 48"), ([40, 50], "step 48")]
)
def test_a_step_that_is_only_the_last_possible_one_says_so(interval, since):
    drift = replace(DRIFT, step_first=48, evidence={"onset_interval": interval})
    assert of(drift).verdict.line == f"Fault found: rank 2, since {since}; 1 finding."


@pytest.mark.parametrize(("kind", "who"), [("below", "rank 0 or the others"), ("above", "rank 0")])
def test_a_rank_that_learns_more_than_the_others_may_be_the_only_one_that_is_right(kind, who):
    learns = Finding("worker-loss-outlier", "warning", "It is odd.", (0,), 5, evidence={"kind": kind})
    assert of(learns).verdict.line == f"Probable fault: {who}, since step 5; 1 finding."


LOSS = Finding(
    "worker-loss-outlier", "warning", "It is odd.", (2,), 13, 99, evidence={"onset_interval": [13, 19], "kind": "above"}
)
COSINE = Finding(
    "worker-direction-outlier",
    "warning",
    "It points elsewhere.",
    (2,),
    0,
    99,
    evidence={"onset_interval": [0, 4], "crossed_step": 20},
)


def test_a_fault_began_when_the_first_finding_of_its_cause_did():
    """Labels are wrong from the first step on, and the loss shows it only once something is learned."""
    report = report_of(LOSS, COSINE)
    assert report.incidents[0].findings == (0, 1)
    assert report.verdict.line == "Probable fault: rank 2, since step 0; 2 findings."
    assert (report.began(0).code, report.where(0)) == ("worker-direction-outlier", "rank 2, since step 0")


def test_a_finding_that_may_have_begun_later_dates_nothing():
    late = replace(COSINE, step_first=8, evidence={"onset_interval": [8, 30], "crossed_step": 30})
    assert report_of(LOSS, late).verdict.line == "Probable fault: rank 2, since step 13; 2 findings."


def test_what_the_cause_does_not_explain_dates_nothing():
    other = replace(DRIFT, ranks=(2,), step_first=60, evidence={"kind": ["later", "one"]})
    early = Finding("x", "warning", "Something else.", (2,), 3, 99, evidence={"crossed_step": 60})
    report = report_of(other, early)
    assert len(report.incidents) == 1
    assert report.verdict.line.startswith("Fault found: rank 2, since step 60")


def test_the_accused_are_all_whom_findings_tell_from_others():
    differs = Finding("rank-config-differs", "error", "20 modules evaluate on rank 0 and 0 on 1.", (0, 1), 5)
    louder = Finding("worker-grad-norm-outlier", "warning", "Its gradient is 3 times.", (0,), 5)
    report = report_of(differs, louder, ranks=2)
    assert [incident.findings for incident in report.incidents] == [(0, 1)]
    assert (report.incidents[0].ranks, report.accused(0)) == ((0, 1), (0,))
    assert report.verdict.line == "Fault found: rank 0 (against rank 1), since step 5; 2 findings."
    drifts = replace(louder, code="replica-drift", ranks=(2,))
    assert report_of(replace(differs, ranks=(0, 2)), drifts).accused(0) == (0, 2)
    both = report_of(differs, replace(louder, ranks=(0, 1)), ranks=2)
    assert both.verdict.line == "Fault found: ranks 0 and 1, since step 5; 2 findings."


def test_what_concerns_all_ranks_or_none_says_so():
    everyone = Finding("x", "error", "All are.", (0, 1, 2, 3), 3)
    nobody = Finding("x", "error", "Something is.")
    assert of(everyone).verdict.line == "Fault found: all 4 ranks, since step 3; 1 finding."
    assert of(nobody).verdict.line == "Fault found: 1 finding."


def stopped_at(step: int) -> Finding:
    return Finding("watch-degraded", "info", f"Watching of gradients stopped on rank 1 at step {step}: X.", (1,), step)


def test_a_watch_that_stopped_early_cannot_tell():
    early = of(stopped_at(3))
    assert early.verdict.line == "Cannot tell: watching of gradients stopped on rank 1 at step 3: X."
    assert report_of(stopped_at(3)).exit_code == 3
    assert report_of(stopped_at(150)).exit_code == 3  # no row came after it
    assert report_of(SEED, stopped_at(3)).exit_code == 1


def test_a_watch_that_stopped_late_says_when():
    late = report_of(stopped_at(140))
    assert late.exit_code == 0
    assert late.verdict.line.endswith(". Watching stopped in part at step 140.")


def test_information_is_no_fault():
    assert of(STREAMS).verdict.status == "clear"
    assert of(STREAMS).verdict.where == ""


def test_clean_run_says_what_was_checked_and_what_was_not():
    said = of()

    assert said.verdict.line == (
        "No fault found in 150 steps of 4 ranks. Not tested: averaging of gradients, equal replicas (no digests)."
    )
    assert "None of the checks that ran judges whether one rank’s loss" in said.what
    assert said.checked == "3 checks over steps 0–149 on 4 ranks: shard-overlap, worker-nonfinite and worker-silent."
    assert said.unchecked == [(["replica-drift"], "no digests")]


def test_clean_run_with_judged_workers_does_not_disclaim():
    assert "None of the checks that ran judges" not in of(checks=(*EXACT, "worker-loss-outlier")).what


@pytest.mark.parametrize(
    ("checks", "num_steps", "ranks"),
    [((), 150, 4), (EXACT, 0, 4), ((), 0, 4), (EXACT[:1], 150, 4), (EXACT[2:], 150, 1)],
)
def test_nothing_or_nearly_nothing_judged_is_not_called_clean(checks, num_steps, ranks):
    assert of(checks=checks, num_steps=num_steps, ranks=ranks).verdict.status == "unknown"
    assert report_of(checks=checks, num_steps=num_steps, ranks=ranks).exit_code == 3


def test_an_error_is_told_whatever_could_not_be_judged():
    assert of(DRIFT, checks=(), num_steps=0, ranks=1).verdict.status == "out"


def judged_of(questions: dict[Question, str], *, world_size: int = 4) -> Judged:
    """Each question with one check that ran (``ran``), or did not for that reason."""
    asked = tuple(
        Asked(question, (question,)) if why == "ran" else Asked(question, (), (NotRun(question, "", why),))
        for question, why in questions.items()
    )
    return Judged(asked, tuple(range(world_size)), world_size, 10, (0, 9))


ALL_RAN: dict[Question, str] = dict.fromkeys(("data", "replicas", "workers", "nonfinite"), "ran")


def test_what_cannot_be_in_a_training_is_no_lack():
    sharded = judged_of(ALL_RAN | {"replicas": "by-design", "data": "no-data"})
    assert (sharded.enough, [each.question for each in sharded.of("open")]) == (True, ["data"])
    assert not judged_of(ALL_RAN | {"replicas": "undecidable", "data": "no-data"}).enough
    assert not judged_of(dict.fromkeys(ALL_RAN, "by-design")).enough


def test_a_question_of_which_most_checks_lacked_something_is_judged_in_part():
    lacking = tuple(NotRun(code, "three steps: it takes ten", "too-few-steps") for code in "abc")
    assert Asked("workers", ("x",), lacking).state == "partly"
    assert Asked("workers", ("x", "y", "z"), lacking).state == "judged"
    assert Asked("workers", ("x",), (NotRun("a", "", "by-design"), NotRun("b", "", "not-recorded"))).state == "judged"
    judged = replace(judged_of(ALL_RAN), questions=(Asked("workers", ("x",), lacking), *judged_of(ALL_RAN).questions))
    line = CheckReport("exp", (), judged).verdict.line
    assert line == "No fault found in 10 steps of 4 ranks. Partly: one rank against the others (three steps)."


@pytest.mark.parametrize("reason", ["no-data", "too-few-steps", "undecidable", "damaged", "failed"])
def test_a_lack_leaves_a_question_open(reason):
    assert [each.question for each in judged_of({"data": reason, "recorded": "not-recorded"}).of("open")] == ["data"]


OF_ONE: dict[Question, str] = {"data": "one-worker", "nonfinite": "ran", "jumps": "too-few-steps", "updates": "ran"}


def test_one_process_is_judged_by_what_applies_to_it_and_comparisons_do_not():
    alone = replace(judged_of(OF_ONE | {"jumps": "ran"}, world_size=1), num_steps=60)
    assert (CheckReport("exp", (), alone).exit_code, CheckReport("exp", (), alone).verdict.line) == (
        0,
        "No fault found in 60 steps of one process. Comparisons between ranks do not apply.",
    )
    assert CheckReport("exp", (), alone).verdict.brief == "No fault found in 60 steps of one process."
    short = replace(judged_of(OF_ONE, world_size=1), num_steps=20)
    assert CheckReport("exp", (), short).verdict.line.endswith("do not apply. Not tested: jumps of loss and gradients.")


def test_one_process_of_too_few_steps_or_questions_cannot_be_told():
    few = replace(judged_of(OF_ONE, world_size=1), num_steps=7)
    assert (CheckReport("exp", (), few).exit_code, CheckReport("exp", (), few).verdict.line) == (
        3,
        "Cannot tell: 7 steps of one process are too few; it takes 8.",
    )
    blind = replace(judged_of(OF_ONE | {"updates": "no-data"}, world_size=1), num_steps=60)
    line = "Cannot tell. Not tested: jumps of loss and gradients, updates of the optimizer."
    assert (CheckReport("exp", (), blind).exit_code, CheckReport("exp", (), blind).verdict.line) == (3, line)


def test_a_rank_that_is_lost_is_not_one_process():
    lost = replace(judged_of(OF_ONE | {"jumps": "ran"}, world_size=2), ranks=(0,), num_steps=60)
    assert CheckReport("exp", (), lost).exit_code == 3


def test_questions_that_lack_the_same_thing_are_told_together():
    judged = judged_of(ALL_RAN | {"order": "undecidable", "mask": "undecidable", "batch": "no-data"})
    whys = {"order": "no token stands twice in a row", "mask": "no token stands twice in a row", "batch": "one row"}
    told = tuple(
        Asked(asked.question, (), (replace(asked.checks_not_run[0], why=whys[asked.question]),))
        if asked.question in whys
        else asked
        for asked in judged.questions
    )
    assert CheckReport("exp", (), replace(judged, questions=told)).verdict.line == (
        "No fault found in 10 steps of 4 ranks. Not tested: token order, causal mask and labels (no token stands twice "
        "in a row); samples leaking into each other (one row)."
    )


def test_a_reference_that_was_given_is_compared_with_or_nothing_can_be_told():
    assert not judged_of(ALL_RAN | {"reference": "no-data"}).enough
    assert judged_of({"nonfinite": "ran", "reference": "ran"}, world_size=1).enough
    assert judged_of({"nonfinite": "ran", "rollouts": "ran"}, world_size=1).enough
    assert not judged_of({"nonfinite": "ran", "rollouts": "ran"}, world_size=2).enough
    assert not judged_of({"nonfinite": "ran", "reference": "ran"}, world_size=2).enough


def test_headline_over_several_runs_has_the_worst_first():
    named = [("a", of().verdict), ("b", of(OVERLAP).verdict), ("c", of(num_steps=0).verdict)]

    assert headline(named) == "Fault found: b; no fault found: a; cannot tell: c."


def test_headline_over_many_runs_counts_them():
    assert headline([(str(index), of(OVERLAP).verdict) for index in range(9)]) == "Fault found: 9 Runs."
