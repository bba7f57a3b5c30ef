"""A cause is named where signs speak for it alone, left open where they do not, and never by what nobody looked at."""

import math
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tests.unit.healthy_run import healthy_rows, write_run
from torch import nn

import trueline
from trueline.judge.causes import posterior as posterior_module
from trueline.judge.causes.cause import Cause
from trueline.judge.causes.library import known_causes
from trueline.judge.causes.posterior import UNKNOWN, posterior, score
from trueline.judge.causes.signs import Signs, context_of, signs_of
from trueline.judge.causes.verdicts import verdicts_of
from trueline.judge.check_run import CheckReport
from trueline.judge.facts.base_rates import BaseRate
from trueline.judge.facts.fact import Fact
from trueline.judge.facts.training_facts import TrainingFacts, all_subjects
from trueline.judge.registry import installed_checks
from trueline.render.cause_words import speaking_for
from trueline.schema.errors import RunError
from trueline.schema.finding import NO_UPDATE, Finding
from trueline.schema.judged import AskedQuestion, Judged, NotRun
from trueline.schema.law import BESIDE, findings_of
from trueline.store.reader import Run

CAUSES = {cause.slug: cause for cause in known_causes()}
CODES = {check.code for check in installed_checks()} | {*findings_of(*BESIDE), NO_UPDATE}


def finding(code, ranks=(2,), step=32, severity="error", **evidence):
    return Finding(code, severity, f"{code}.", ranks, step, step + 60, evidence=evidence, next=(f"Look at {code}.",))


def report(*findings, ran=(), not_run=(), world_size=4, context=()):
    asked = AskedQuestion("workers", (*ran, *(each.code for each in findings)), tuple(not_run))
    judged = Judged((asked,), tuple(range(world_size)), world_size, 100, (0, 99))
    return CheckReport("run", tuple(findings), judged, context=frozenset(context))


def answer(*findings, **given):
    return verdicts_of(report(*findings, **given))[0]


def test_one_rank_whose_loss_and_gradient_are_scaled():
    said = answer(finding("worker-scale", kind=["loss-too"]), ran=("worker-loss-outlier",))
    assert (said.cause, said.standing, said.because) == ("loss-scaled-on-rank", "supported", ("worker-scale",))
    assert said.next[0] == CAUSES["loss-scaled-on-rank"].settles
    assert said.next[1] == "Look at worker-scale."


def test_the_kind_of_a_finding_tells_causes_apart():
    kinds = ("not-divided", "divided-again", "other-factor")
    said = [answer(finding("reduction-mismatch", (0, 1, 2, 3), kind=["scaled", kind])).cause for kind in kinds]
    assert said == ["not-divided", "divided-twice", "reduction-scaled"]


@pytest.mark.parametrize(("side", "labels"), [("above", "labels-wrong-on-rank"), ("below", "labels-right-on-one-rank")])
def test_what_the_signs_cannot_tell_apart_is_named_together(side, labels):
    """A rank whose loss is below the others' may be the only one that is right."""
    said = answer(finding("worker-loss-outlier", kind=side), ran=("worker-scale",))
    assert said.standing == "undecided"
    assert set(said.among) == {labels, "other-data-on-rank", "loss-computed-otherwise-on-rank"}
    assert said.next[: len(said.among)] == tuple(CAUSES[slug].settles for slug in said.among)


def test_a_gradient_that_stands_out_alone_may_come_of_other_data():
    """Such as inputs that were not normalised."""
    odd = [finding(code) for code in ("worker-direction-outlier", "worker-grad-norm-outlier")]
    said = answer(*odd, ran=("worker-loss-outlier", "worker-scale"))
    assert said.standing == "undecided"
    assert set(said.among) >= {"gradient-wrong-on-rank", "other-data-on-rank"}


@pytest.mark.parametrize(
    ("fed", "cause"),
    [
        ({"inputs": "alike", "loss": "alike"}, "labels-wrong-on-rank"),
        ({"inputs": "other", "loss": "alike"}, "other-data-on-rank"),
        ({"inputs": "alike", "loss": "other"}, "loss-computed-otherwise-on-rank"),
    ],
)
def test_what_a_rank_reads_and_computes_tells_them_apart(fed, cause):
    found = [finding("worker-loss-outlier", kind="above", fed=fed), finding("worker-direction-outlier", fed=fed)]
    assert answer(*found, ran=("worker-scale", "worker-grad-norm-outlier")).cause == cause


def test_a_batch_without_labels_has_a_loss_of_nan_and_no_gradient():
    said = verdicts_of(
        report(finding("worker-nonfinite", kind=["loss"]), finding("worker-silent", kind="loss-not-finite"))
    )
    assert next(each.cause for each in said if each.standing != "excluded") == "labels-all-masked"


@pytest.mark.parametrize(("stale", "cause"), [(True, "reduction-not-waited-for"), (False, "parameter-left-out")])
def test_gradients_that_change_while_the_update_reads_them_were_not_waited_for(stale, cause):
    every = (0, 1, 2, 3)
    found = [finding("gradient-not-reduced", every, kind="some"), finding("replica-drift", every, kind="later")]
    more = [finding("reduction-mismatch", every), finding("optimizer-state-stale", every)]
    codes = ("reduction-mismatch", "optimizer-state-stale")
    said = answer(*found, *(more if stale else ()), ran=codes, context=["adapter:manual"])
    assert (said.cause, said.among) == (cause, ())


def test_an_input_that_is_constant_leaves_what_reads_it_without_a_gradient():
    """Zeros for a time: the first layer that is multiplied by it never has one."""
    found = [finding("input-constant", severity="warning", kind="condition"), finding("worker-silent", kind="some")]
    found.append(finding("worker-direction-outlier", severity="warning", fed={"inputs": "other", "loss": "alike"}))
    said = answer(*[replace(each, severity="warning") for each in found])
    assert (said.cause, said.because[0]) == ("input-carries-nothing", "input-constant")


@pytest.mark.parametrize(
    ("kind", "cause"),
    [
        ("nothing", "clipped-nothing"),
        ("late", "clipped-at-another-time"),
        ("early", "clipped-at-another-time"),
        ("multiplied", "clipped-at-another-time"),
        ("elements", "clipping-wrong"),
    ],
)
def test_clipping_that_clips_nothing_or_at_another_time_multiplies_by_no_wrong_factor(kind, cause):
    said = answer(finding("clip-differs", (0, 1), kind=kind), ran=("norm-misreported",), world_size=2)
    assert (said.cause, said.among) == (cause, ())


def test_a_cause_that_does_not_state_the_kind_that_was_found_is_not_named():
    """Of what no cause is known for, the finding's own sentence is better than the nearest cause."""
    for code, kind in (("sample-repeats", "handed-out-again"), ("optimizer-detached", "new"), ("clip-differs", "new")):
        said = answer(finding(code, (0,), kind=kind), world_size=1)
        assert (said.cause, said.standing) == (UNKNOWN, "undecided")
        assert said.next == (f"Look at {code}.",)


@pytest.mark.parametrize(
    ("code", "kind", "cause"),
    [
        ("optimizer-state-stale", "between-updates", "optimizer-state-not-advanced"),
        ("param-moves-without-gradient", "decayed", "frozen-parameters-move"),
        ("schedule-differs", "any", "schedule-wrong"),
    ],
)
def test_kinds_by_which_no_cause_is_told_from_another_do_not_matter(code, kind, cause):
    assert answer(finding(code, (0,), kind=kind), world_size=1).cause == cause


def test_a_consequence_is_explained_by_a_finding_of_the_kind_that_the_cause_brings():
    """Ranks that share some samples do not read the same batches, whatever that would explain."""
    found = [finding("shard-overlap", (0, 1), kind="read-twice"), finding("duplicate-data", (0, 1), kind="few")]
    context = ["sampler:split", "parts:own", "rows:own", "split:drawn"]
    for some in (found, found[:1]):
        said = answer(*some, ran=("duplicate-data",) if len(some) == 1 else (), context=context, world_size=2)
        assert (said.cause, said.among) == ("split-drawn-by-each-rank", ())


@pytest.mark.parametrize(
    ("kinds", "cause"),
    [
        (["restarted"], "data-restarted"),
        (["by-loader-workers"], "stream-read-by-each-loader-worker"),
        (["in-order"], "stream-read-by-each-loader-worker"),
        (["held"], "batch-again"),
    ],
)
def test_what_reads_samples_again_is_told_by_how_they_come(kinds, cause):
    assert answer(finding("sample-repeats", (0, 1), kind=kinds), world_size=2).cause == cause


@pytest.mark.parametrize(
    ("kinds", "cause"),
    [(["within-start"], "step-unstable"), (["at-restart", "weights-other"], "weights-not-restored")]
    + [(["at-restart", *more], UNKNOWN) for more in ([], ["weights-kept"])],
)
def test_a_jump_at_the_first_step_of_a_start_is_no_step_that_was_too_large(kinds, cause):
    every = (0, 1)
    jump = finding("loss-spike", every, severity="warning", kind=kinds)
    assert answer(jump, world_size=2).cause == cause
    both = [finding(code, every, severity="warning", kind=["at-restart"]) for code in ("grad-spike", "loss-spike")]
    assert answer(*both, world_size=2).cause == UNKNOWN


@pytest.mark.parametrize("kind", ["all", "frozen", "last", "unfrozen"])
def test_an_optimizer_that_holds_a_part_of_the_model_updates_no_other_parameters(kind):
    said = answer(finding("optimizer-detached", (0,), kind=kind), world_size=1)
    assert said.cause == ("optimizer-of-other-parameters" if kind == "all" else "optimizer-lacks-parameters")


@pytest.mark.parametrize(
    ("adapter", "cause"), [("part-in-ddp", "parameter-outside-wrapper"), ("manual", "parameter-left-out")]
)
def test_a_part_beside_the_one_in_ddp_is_left_out_by_no_hand_written_reduction(adapter, cause):
    found = [finding("gradient-not-reduced", (0, 1), kind="some"), finding("replica-drift", (0, 1), kind="later")]
    said = answer(*found, ran=("reduction-mismatch",), context=[f"adapter:{adapter}"], world_size=2)
    assert (said.cause, said.among) == (cause, ())


def test_clipping_before_unscaling_has_a_name_of_its_own():
    kinds = ("scaled", "other")
    said = [answer(finding("norm-misreported", kind=kind), ran=("clip-differs",)).cause for kind in kinds]
    assert said == ["clipped-while-scaled", "clipping-wrong"]


def test_what_was_not_recorded_is_missing_and_comes_next():
    lacking = NotRun("overflow-origin", "no step was recorded; record some", "not-recorded")
    said = answer(finding("worker-nonfinite", kind=["loss"]), not_run=[lacking])
    assert said.standing == "undecided"
    assert said.missing == ("overflow-origin: no step was recorded; record some",)
    assert said.next[0] == "No step was recorded; record some."


def test_a_finding_that_no_cause_brings_is_of_an_unknown_one():
    said = answer(finding("a-check-of-another-package"))
    assert (said.cause, said.standing, said.among) == (UNKNOWN, "undecided", ())
    assert said.next == ("Look at a-check-of-another-package.",)


def test_exact_contradictions_exclude():
    drift = finding("replica-drift", (0, 1, 2, 3), kind=["later", "several"])
    left_out = {
        v.cause: v.against
        for v in verdicts_of(report(drift, ran=("gradient-not-reduced",)))
        if v.standing == "excluded"
    }
    assert left_out["no-all-reduce"] == ("gradient-not-reduced",)


def test_a_check_that_did_not_run_counts_nothing():
    cause = CAUSES["wrapper-bypassed"]
    seen = Signs(frozenset({"gradient-not-reduced"}), frozenset())
    assert score(cause, seen) < score(cause, Signs(seen.fired | {"replica-drift"}, frozenset()))
    assert score(cause, seen) > score(cause, Signs(seen.fired, frozenset({"replica-drift"})))


def test_one_root_statistic_has_one_vote():
    cause = CAUSES["gradient-wrong-on-rank"]
    twice = replace(cause, shows={**cause.shows, "grad-spike": "always", "dispersion-high": "always"})
    few, more = frozenset({"grad-spike"}), frozenset({"grad-spike", "dispersion-high"})
    assert score(twice, Signs(more, frozenset())) == pytest.approx(score(twice, Signs(few, frozenset())))


def info(code, *, ranks=(2,), step=32, **evidence):
    return finding(code, ranks, step, "info", **evidence)


def test_a_finding_for_information_speaks_for_its_cause_and_against_none():
    """A state that was thrown away, as may be meant, where the gradient jumps."""
    jump = finding("grad-spike", severity="warning", kind="within-start")
    told = answer(jump, info("optimizer-state-stale", kind="between-updates"))
    assert "optimizer-state-not-advanced" in (told.cause, *told.among)
    assert answer(jump, ran=["optimizer-state-stale"]).cause == answer(jump).cause
    assert "optimizer-state-not-advanced" not in answer(jump).among
    cause, code = CAUSES["optimizer-state-not-advanced"], "optimizer-state-stale"
    none, hint, whole = (
        score(cause, signs)
        for signs in (
            Signs(frozenset(), frozenset({code})),
            Signs(frozenset(), frozenset({code}), frozenset({code})),
            Signs(frozenset({code}), frozenset()),
        )
    )
    assert none < 0 < hint == pytest.approx(whole / 2)


@pytest.mark.parametrize("apart", [{"ranks": (0,)}, {"step": 300}])
def test_a_finding_for_information_about_another_rank_or_later_steps_counts_nothing(apart):
    said = answer(
        finding("grad-spike", severity="warning", kind="within-start"), info("optimizer-state-stale", **apart)
    )
    assert "optimizer-state-not-advanced" not in (said.cause, *said.among)


def test_a_finding_for_information_of_another_kind_speaks_for_no_cause():
    """What all Runs say of their random streams is no sign that one of them begins again."""
    again = finding("input-constant", kind="noise", severity="warning")
    said = [answer(again, info("rng-streams", **given)) for given in ({}, {"kind": "begins-again"})]
    assert {each.cause for each in said} == {"seeds-in-the-loop"}
    assert ["rng-streams" in each.because for each in said] == [False, True]


ALONE = ("loss-spike", "grad-spike", "grad-vanishes", "worker-nonfinite", "sample-repeats", "loss-scale-wrong")
"""Checks that one process is enough for, and whose causes tell of ranks where there are several."""


@pytest.mark.parametrize("code", ALONE)
def test_a_job_of_one_process_hears_nothing_of_other_ranks(code):
    every = verdicts_of(report(finding(code, (0,), severity="warning"), world_size=1))
    words = [line for each in every for line in (each.says, *each.next)]
    assert words
    assert not [line for line in words if re.search(r"\branks?\b", line)]


@pytest.mark.parametrize(
    ("standing", "among", "headline", "shortly"),
    [
        ("suspected", (), "Suspected cause: It.", "Suspected: It."),
        ("supported", (), "Likely cause: It.", "Likely: It."),
        ("confirmed", (), "Confirmed cause: It.", "Confirmed: It."),
        ("undecided", ("a", "b"), "Cause undecided, one of 2: It.", "Undecided, one of 2: It."),
    ],
)
def test_a_standing_has_one_word(standing, among, headline, shortly):
    said = replace(answer(finding("worker-scale")), standing=standing, among=among, says="It.", cause="it")
    assert (said.headline, said.shortly) == (f"{headline} (it)", shortly)


def test_without_evidence_for_any_all_are_as_likely():
    chances = posterior(list(CAUSES.values()), Signs(frozenset(), frozenset()), telling=[])
    assert chances[UNKNOWN] == 1.0


def test_leaving_out_checks_ends_in_abstention_and_not_in_another_cause():
    scaled, longer = finding("worker-scale", kind=["loss-too"]), finding("worker-grad-norm-outlier", severity="warning")
    whole = answer(scaled, longer)
    assert whole.cause == "loss-scaled-on-rank"
    assert answer(finding("worker-scale")).standing == "undecided"  # its kind is not known
    without = [cause for slug, cause in CAUSES.items() if slug != whole.cause]
    assert verdicts_of(report(scaled, longer), without)[0].standing == "undecided"


@pytest.mark.parametrize("kind", [3, {"a": 1}, [1, "all"], None])
def test_what_a_check_of_another_package_keeps_under_kind_is_no_matter(kind):
    assert answer(finding("gradient-not-reduced", (0, 1, 2, 3), kind=kind)).cause


def test_a_damaged_run_still_says_how_it_was_run(tmp_path, monkeypatch):
    run = Run(write_run(tmp_path, healthy_rows(2, 4)).path)

    def damaged(column):
        raise RunError(f"{column} cannot be read")

    monkeypatch.setattr(run, "pivot", damaged)
    assert "adapter:ddp" in context_of(run)


def test_a_report_without_incidents_has_no_causes():
    assert verdicts_of(report()) == ()


@pytest.mark.parametrize("cause", CAUSES.values(), ids=lambda cause: cause.slug)
def test_a_cause_names_codes_and_kinds_that_there_are(cause):
    kinds = _kinds_in_the_checks()
    for sign in (*cause.shows, *cause.needs, *cause.excludes):
        topic, _, kind = sign.partition("/")
        assert ":" in sign or topic in CODES, sign
        assert all(each in kinds for each in kind.split("|") if each), sign
    assert cause.settles.endswith((".", "-- COMMAND`"))
    assert cause.says[0].isupper()


def _kinds_in_the_checks():
    """Every text in quotes of the code that judges: a kind must be one of them, or an origin with its spaces joined."""
    package = Path(trueline.__file__).parent
    folders = ("laws", "judge/series", "judge/recorded", "comparison/judgement")
    files = [file for folder in folders for file in (package / folder).rglob("*.py")]
    return {text.replace(" ", "-") for file in files for text in re.findall(r'"([a-z][a-z0-9 -]*)"', file.read_text())}


def test_every_code_has_a_cause():
    brought = {code for cause in CAUSES.values() for code in cause.codes}
    unexplained = {"dispersion-high", "explained-by-rounding", "site-missing", "worker-grad-norm-outlier"}
    unexplained |= {"restart-differs", "layouts-differ"}  # of trials, whose answers name the cause
    confirmed = {
        "activation-missing",
        "average-in-model",
        "average-restarts",
        "average-updates",
        "batches-dropped",
        "begin-alike",
        "buffers-overwritten",
        "class-ignored",
        "target-in-inputs",
        "class-weights-reversed",
        "clip-not-applied",
        "copy-is-model",
        "data-set-changes",
        "decay-on-norms",
        "draws-end",
        "embedding-rows",
        "evaluation-draws",
        "evaluation-state",
        "frozen-untrained",
        "held-out-trained",
        "inputs-equal",
        "labels-change",
        "labels-sorted",
        "masked-rows-decay",
        "load-undone",
        "loads-itself",
        "loss-skipped",
        "one-for-all-samples",
        "outputs-alike",
        "restart-rate",
        "rows-unused",
        "rows-lost",
        "rows-untrained",
        "rate-of-first-group",
        "rate-replaced",
        "tie-lost",
        "token-doubled",
        "trains-in-evaluation",
    }
    # Those are in no incident.
    assert CODES - brought <= unexplained | confirmed


def test_the_public_name(tmp_path):
    run = write_run(tmp_path, healthy_rows(2, 9))
    diagnosis = trueline.diagnose(run)
    assert diagnosis.verdicts == ()
    assert diagnosis.exit_code == trueline.check(run).exit_code
    assert list(diagnosis.to_json()) == [
        *("schema", "run", "status", "exit_code", "verdict", "cause", "not_judged", "actions"),
        *("verdicts", "incidents", "findings", "judged", "next", "notes"),
    ]


def unclaimed(slug, *findings, **given):
    """Whether no cause is claimed where ``slug``, the true one, is not among those that are known."""
    assert answer(*findings, **given).cause == slug
    others = [cause for cause in CAUSES.values() if cause.slug != slug]
    return verdicts_of(report(*findings, **given), others)[0].standing == "undecided"


def test_what_nobody_could_look_for_is_not_claimed():
    """Replicas are not compared where there are none, so that corrupted memory could not be seen."""
    found = [finding("worker-nonfinite", kind=["loss", "gradient"]), finding("overflow-origin", kind=["made"])]
    absent = NotRun("replica-drift", "no two ranks hold the same", "one-worker")
    assert unclaimed(
        "operation-undefined", *found, ran=("reduction-mismatch",), not_run=[absent], context=["precision:other"]
    )


def test_replicas_that_differ_from_the_start_or_in_buffers_alone_are_of_no_wrong_group():
    ran = ("reduction-mismatch", "gradient-not-reduced", "rank-config-differs", "updates-apart")
    for slug, *kind in (
        ("starts-differ", "from-the-start", "several"),
        ("buffers-not-synchronised", "buffers", "statistics"),
    ):
        assert unclaimed(slug, finding("replica-drift", (0, 1, 2, 3), kind=kind), ran=ran, context=["adapter:ddp"])


def test_a_weight_that_changed_by_itself_is_no_undefined_operation():
    drift = finding("replica-drift", (2,), kind=["later", "one"])
    found = [finding("worker-nonfinite", kind=["loss"]), finding("overflow-origin", kind=["made"]), drift]
    assert unclaimed("memory-corrupted", *found, context=["precision:other", "adapter:ddp"])


def test_an_update_that_a_synchronised_pass_came_before_was_not_under_no_sync():
    found = [finding("gradient-not-reduced", (0, 1, 2, 3), kind="some")]
    found.append(finding("replica-drift", (0, 1, 2, 3), step=33, kind=["later", "one"]))
    assert unclaimed("parameter-outside-wrapper", *found, context=["adapter:ddp", "sync:on", "wrapper:called"])


def test_clipping_on_a_single_process_is_of_no_other_rank():
    differs = finding("clip-differs", (0,), kind="elements")
    said = answer(differs, ran=("norm-misreported",), world_size=1, context=["adapter:single"])
    assert said.cause == "clipping-wrong"
    assert said.among == ()


def test_a_cause_that_a_check_without_data_would_contradict_is_left_open_until_that_is_judged():
    """Settings that differ make updates differ, so that updates are not blamed where nobody compared settings."""
    drift = finding("replica-drift", (0, 1, 2, 3), kind=["later", "several"])
    ran = ("reduction-mismatch", "gradient-not-reduced", "updates-apart")
    lacking = NotRun("rank-config-differs", "no rank left its settings")
    slug = "updates-not-the-same"
    causes = [cause for cause in CAUSES.values() if cause.slug != "weights-replaced-on-rank"]
    known = verdicts_of(report(drift, ran=(*ran, lacking.check), context=["adapter:ddp"]), causes)[0]
    assert (known.cause, known.among) == (slug, ())
    said = verdicts_of(report(drift, ran=ran, not_run=[lacking], context=["adapter:ddp"]), causes)[0]
    assert (said.standing, said.among) == ("undecided", (slug, "optimizer-settings-differ"))
    assert "rank-config-differs: no rank left its settings" in said.missing
    assert said.next[0] == "No rank left its settings."


@pytest.mark.parametrize(
    ("alike", "cause"), [("states-equal", "weights-replaced-on-rank"), ("states-apart", "updates-not-the-same")]
)
def test_states_of_the_optimizer_tell_updates_from_weights_that_were_written(alike, cause):
    ran = ("reduction-mismatch", "gradient-not-reduced", "updates-apart", "rank-config-differs")
    drift = finding("replica-drift", (0,), kind=["later", "several", alike])
    said = answer(drift, ran=ran, context=["adapter:ddp"])
    assert (said.cause, said.standing) == (cause, "supported")


def test_a_consequence_alone_names_no_cause_whose_own_finding_nobody_could_look_for():
    drift = finding("replica-drift", (0, 1, 2, 3), kind=["later", "several"])
    given = {"ran": ("gradient-not-reduced", "rank-config-differs"), "context": ["adapter:ddp"]}
    said = answer(drift, not_run=[NotRun("reduction-mismatch", "no gradient was seen")], **given)
    assert said.standing == "undecided"


@pytest.mark.parametrize(
    ("context", "cause"),
    [
        (["sampler:split", "parts:shared"], "sampler-rank-wrong"),
        (["sampler:split", "parts:own"], "sampler-not-used"),
        (["sampler:whole"], "data-not-split"),
    ],
)
def test_equal_batches_are_of_the_samplers_only_where_these_take_one_part(context, cause):
    found = finding("duplicate-data", (0, 1, 2, 3), kind="same-samples")
    assert answer(found, ran=("shard-overlap",), context=context).cause == cause
    found = finding("duplicate-data", (0, 1, 2, 3), kind="positions-kept")
    assert answer(found, ran=("shard-overlap",), context=context).cause == "seeded-again"


@pytest.mark.parametrize("sampler", ["own", "stream", "whole"])
def test_data_that_only_some_ranks_share_are_split_by_a_wrong_rank(sampler):
    found = finding("duplicate-data", (0, 1), kind="some-ranks")
    said = answer(found, ran=("shard-overlap",), context=[f"sampler:{sampler}"], world_size=3)
    assert said.cause == "sampler-rank-wrong"


@pytest.mark.parametrize(("order", "cause"), [("order:random", "orders-not-shared"), ("order:file", "slices-overlap")])
def test_only_random_orders_are_not_shared(order, cause):
    found = finding("shard-overlap", (0, 1, 2, 3), kind="read-twice")
    assert answer(found, ran=("duplicate-data",), context=["sampler:whole", order]).cause == cause


def test_a_gradient_that_changed_after_the_mean_is_of_no_collective():
    found = [finding("reduction-mismatch", (0, 1, 2, 3), kind=["replicas-apart", "other", "after-the-mean"])]
    found.append(finding("replica-drift", (0, 1, 2, 3), step=33, kind=["later", "several"]))
    assert answer(found[0], found[1], context=["adapter:ddp"]).standing == "undecided"
    found[0] = finding("reduction-mismatch", (0, 1, 2, 3), kind=["replicas-apart", "other"])
    assert answer(*found, context=["adapter:ddp"]).cause == "wrong-group"
    found[0] = finding("reduction-mismatch", (0,), kind=["replicas-apart", "other", "extra-pass"])
    assert answer(*found, context=["adapter:ddp"]).cause == "backward-on-some-ranks"


def with_fact(marks):
    """A Run of which the learning rate is told; ``marks`` are those that apply to updates at rate 0."""
    fact = Fact("rate-zero", "update", "60 of 120 updates had the learning rate 0", marks=marks)
    facts = TrainingFacts("run", (fact,), {"the DataLoader": "none was seen"})
    return replace(report(finding("param-frozen")), facts=facts)


@pytest.mark.parametrize("at_most", [0.02, 0.2])
def test_a_rare_fact_speaks_for_a_cause_as_much_as_it_is_rare(monkeypatch, at_most):
    monkeypatch.setattr(posterior_module, "base_rates", lambda: {"rate-zero": BaseRate(140, 0, at_most)})
    plain = Cause({"param-frozen": "always"}, "Look.", slug="plain")
    cause = Cause({"param-frozen": "always", "fact:rate-zero": "mostly"}, "Look at the rate.", slug="rate")
    of_run = with_fact({"rate-zero": "60 of 120 updates had the learning rate 0"})
    rate = next(said for said in verdicts_of(of_run, [plain, cause]) if said.cause == "rate")
    assert rate.because == ("param-frozen", "fact:rate-zero")
    (incident,) = of_run.incidents
    signs = signs_of(of_run, incident, {"fact:rate-zero", "param-frozen"})
    assert score(cause, signs) - score(plain, signs) == pytest.approx(math.log(0.8 / at_most))
    assert speaking_for(of_run, rate)[1].startswith("fact:rate-zero: 60 of 120 updates had the learning rate 0")


def test_a_fact_that_was_looked_at_and_is_not_there_speaks_against_and_what_nobody_measured_counts_nothing(monkeypatch):
    monkeypatch.setattr(posterior_module, "base_rates", lambda: {"rate-zero": BaseRate(140, 0, 0.02)})
    plain = Cause({"param-frozen": "always"}, "Look.", slug="plain")
    cause = Cause({"param-frozen": "always", "fact:rate-zero": "mostly"}, "Look at the rate.", slug="rate")

    def gain(of_run):
        signs = signs_of(of_run, of_run.incidents[0], {"fact:rate-zero", "param-frozen"})
        return score(cause, signs) - score(plain, signs)

    absent = with_fact({})
    assert gain(absent) == pytest.approx(math.log(0.2 / 0.98))
    untold = replace(absent, facts=replace(absent.facts, unknown={"updates at rate 0": "no optimizer was seen"}))
    assert gain(untold) == 0.0
    monkeypatch.setattr(posterior_module, "base_rates", dict)
    assert gain(absent) == 0.0


def among_facts(*findings, marks=(), unknown=(), **given):
    """The answer on findings of a Run of whose facts ``marks`` apply."""
    facts = [
        Fact(subject.name, subject.area, subject.words, marks={name: subject.words})
        for subject in all_subjects()
        for name in (mark.name for mark in subject.marks)
        if name in marks
    ]
    assert len(facts) == len(marks)
    told = TrainingFacts("run", tuple(facts), dict.fromkeys(unknown, "not looked at"))
    return verdicts_of(replace(report(*findings, **given), facts=told))[0]


ALL = (0, 1, 2, 3)


@pytest.mark.parametrize(
    ("findings", "fact_mark", "cause", "otherwise"),
    [
        ([finding("update-lost", ALL)], "rate-tiny", "rate-too-small", "updates-lost-in-rounding"),
        (
            [finding("param-frozen", ALL, kind="zero-gradient")],
            "loss-never-moves",
            "loss-is-constant",
            "part-never-trained",
        ),
        ([finding("grad-vanishes", ALL)], "scaler-leaves-out-many", "loss-scale-has-fallen", "layer-cut-off"),
    ],
)
def test_a_cause_that_rests_on_a_fact_is_named_where_that_is_there_and_no_other_where_it_is_not(
    findings, fact_mark, cause, otherwise
):
    said = among_facts(*findings, marks=[fact_mark])
    assert (said.cause, said.standing) == (cause, "supported")
    assert f"fact:{fact_mark}" in said.because
    assert among_facts(*findings).cause == otherwise
    # Another rare fact of the Run is no reason to name it.
    assert among_facts(*findings, marks=["mostly-padding"]).cause == otherwise


def test_a_cause_that_rests_on_a_fact_is_not_named_where_the_run_does_not_tell_it():
    said = among_facts(finding("update-lost", ALL), unknown=["the learning rate"])
    assert (said.cause, said.standing) == ("updates-lost-in-rounding", "supported")
    assert answer(finding("update-lost", ALL)).cause == "updates-lost-in-rounding"


def test_weights_in_16_bits_lose_updates_whatever_the_rate():
    said = among_facts(finding("update-lost", ALL), marks=["rate-tiny", "weights-in-16-bits"])
    assert said.cause == "updates-lost-in-rounding"


@pytest.mark.parametrize(("is_constant", "cause"), [(True, "loss-is-constant"), (False, "part-never-trained")])
def test_a_loss_that_never_moves_is_told_from_a_part_that_is_not_trained(tmp_path, is_constant, cause):
    torch.manual_seed(0)
    policy, head = nn.Linear(4, 4), nn.Linear(4, 1)
    model = nn.ModuleDict({"policy": policy, "head": head})
    model.forward = lambda x: (policy(x) - policy(x), head(x))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with trueline.watch(model, optimizer, out=tmp_path / "run", plan={"every": 1}):
        for _ in range(20):
            ratio, values = model(torch.randn(8, 4))
            (ratio.exp().mean() + values.mul(0.0 if is_constant else 1.0).square().mean()).backward()
            optimizer.step()
            optimizer.zero_grad()
    report_of_run = trueline.check(tmp_path / "run")
    assert report_of_run.cause(0).cause == cause
