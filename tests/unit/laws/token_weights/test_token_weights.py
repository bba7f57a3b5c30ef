"""The token-weight law: means of means and wrong sums are found, what is meant or equal but for rounding is left alone.

A Run here is the rows that the probe writes: tokens and weight of each micro-batch, of steps whose counts vary.
"""

import itertools

import numpy as np
import pytest
import torch
from tests.unit.asked import asked
from tests.unit.healthy_run import healthy_rows, write_run
from tests.unit.trained_updates import mlp

import trueline
from trueline.laws.token_weights.columns import TokenWeights
from trueline.laws.token_weights.token_weighting import LEAST_DIFFERENCE
from trueline.schema.columns.input_values import InputFact, facts_text

CODES = ("loss-scale-wrong", "token-weights-differ")
FLOAT32 = 8e-7


def run_of(path, weigh, *, num_ranks=1, num_micro=3, steps=range(8), factor=1.0, spread=(5, 200), **fields):
    """A Run in which ``weigh(counts [ranks, micro])`` gives the weights [ranks, micro]."""
    draw = np.random.default_rng(7)
    rows = healthy_rows(num_ranks, len(steps))
    for step in steps:
        counts = draw.integers(*spread, (num_ranks, num_micro))
        weights = np.broadcast_to(weigh(counts), counts.shape)
        for rank in range(num_ranks):
            rows[step, rank] |= {"token_weights": list(itertools.chain(*map(row_of, counts[rank], weights[rank])))}
            rows[step, rank] |= {"grads_factor": factor, "group_reduce_factor": [1.0] * 3}
            rows[step, rank] |= fields
    return write_run(path, rows)


def row_of(count, weight, *, within=0.0, reduction=1.0, scalings=1.0, doubt=0.0):
    known = (count, weight, weight * (1 + within), 1.0, FLOAT32, reduction, scalings)
    return [getattr(TokenWeights(doubt, *known), name) for name in TokenWeights.__slots__]


def findings(run):
    """Severity and the finding by code."""
    return {each.code: each for each in asked(run, *CODES)[0]}


def not_run(run):
    return {each.check: each for each in trueline.check(run).checks_not_run if each.check in CODES}


def means(counts):
    return 1 / counts / counts.shape[1]


def fair(counts):
    return counts.shape[0] / counts.sum()


def test_means_of_micro_batches_are_a_warning(tmp_path):
    finding = findings(run_of(tmp_path / "run", means))["token-weights-differ"]
    assert (finding.severity, finding.false_alarm_rate, finding.step_first) == ("warning", 0.0, 0)
    assert finding.measured >= 2
    assert "each micro-batch's loss is a mean over its own tokens, which are" in finding.claim


def by_pairs(counts):
    pairs = counts.reshape(2, -1)
    return (2 / pairs.sum(axis=1)).repeat(2)[:, None] * np.ones_like(counts)


def test_tokens_that_are_counted_over_pairs_of_ranks_are_to_be_confirmed(tmp_path):
    run = run_of(tmp_path / "run", by_pairs, num_ranks=4, num_micro=1, spread=(90, 110))
    finding = findings(run)["token-weights-differ"]
    assert (finding.severity, finding.evidence["groups"]) == ("confirm", [[0, 1], [2, 3]])
    line = trueline.check(run).verdict.line
    assert line.startswith("No fault found in 8 steps of 4 ranks; 1 thing to confirm: a token on ranks")
    assert finding.claim.endswith(
        "losses are divided by the tokens of ranks 0 and 1, of ranks 2 and 3, each by themselves, and not by those of "
        "all ranks."
    )


def test_weights_of_pairs_that_do_not_come_from_their_counts_are_the_scripts_own(tmp_path):
    weigh = lambda counts: np.array([1, 1, 3, 3])[:, None] * fair(counts)  # noqa: E731
    run = run_of(tmp_path / "run", weigh, num_ranks=4, num_micro=1)
    assert "token-weights-differ" not in findings(run)


@pytest.mark.parametrize(
    ("share", "begun", "kind"),
    [(1 / 4, 4, "cleared-early"), (1 / 4, 1, "scaled"), (1 / 4, 3, "scaled"), (1.0, 4, None)],
)
def test_one_pass_of_several_that_were_begun_counts(tmp_path, share, begun, kind):
    """Gradients of the others were cleared: by mistake, if this one weighs its share, or like a generator's."""
    found = findings(run_of(tmp_path / "run", lambda counts: share / counts, num_micro=1, passes_begun=begun))
    assert [each.evidence["kind"] for each in found.values()] == ([] if kind is None else [kind])
    if kind == "cleared-early":
        (cleared,) = found.values()
        assert cleared.claim == (
            "3 of every 4 micro-batches are thrown away: zero_grad() runs before each of them (steps 0-7 tested, of 8)."
        )


@pytest.mark.parametrize(("share", "is_told"), [(0.1, False), (2.5, True)])
def test_a_part_of_1_beside_a_term_without_a_gradient_may_be_a_weight_of_several(tmp_path, share, is_told):
    """As 0.9 * soft + 0.1 * hard, of which soft is of the teacher alone: 0, as what sum() begins with."""
    constant = {"constant_terms": [1.0, 0.0, 0.7, 1.2e-7]}
    run = run_of(tmp_path / "run", lambda counts: share / counts, num_micro=1, **constant)
    assert ("loss-scale-wrong" in findings(run)) == is_told
    if not is_told:
        assert "together weigh 0.1 beside a term of the loss without a gradient" in not_run(run)["loss-scale-wrong"].why
    assert "loss-scale-wrong" in findings(run_of(tmp_path / "alone", lambda counts: share / counts, num_micro=1))


SCALE = 2.0**10


@pytest.mark.in_turn
@pytest.mark.parametrize(
    ("how", "kind"),
    [
        ("by the scaler", None),
        ("clipped", None),
        ("by hand", None),
        ("fused", None),
        ("off", None),
        ("copies", None),
        ("never", "never-unscaled"),
        ("twice", "unscaled-twice"),
    ],
)
def test_the_loss_scale_is_taken_out_once(tmp_path, how, kind):
    torch.manual_seed(0)
    model = mlp()
    params = list(model.parameters())
    held = [param.detach().clone() for param in params] if how == "copies" else params
    optimizer = torch.optim.SGD(held, lr=1e-3, fused=how == "fused")
    scaler = torch.amp.GradScaler("cpu", init_scale=SCALE, enabled=how != "off")
    with trueline.watch(model, optimizer, out=tmp_path / "run", plan={"every": 1}):
        for _ in range(6):
            scaler.scale(model(torch.randn(8, 16)).square().mean()).backward()
            for param, one in zip(params, held, strict=True):
                if how == "copies":
                    one.grad = param.grad / SCALE
                elif how in ("by hand", "twice"):
                    param.grad /= SCALE
            if how == "clipped":
                scaler.unscale_(optimizer)
                torch.nn.utils.clip_grad_norm_(params, 1e-2)
            if how in ("by hand", "copies", "never"):
                optimizer.step()
            else:
                scaler.step(optimizer)
                scaler.update()
            model.zero_grad()
    found = findings(tmp_path / "run")
    assert [each.evidence["kind"] for each in found.values()] == ([] if kind is None else [kind])


@pytest.mark.parametrize("num_ranks", [1, 2])
def test_every_token_alike_is_left_alone(tmp_path, num_ranks):
    run = run_of(tmp_path / "run", fair, num_ranks=num_ranks)
    assert findings(run) == {}
    assert not_run(run) == {}


@pytest.mark.parametrize(
    ("weigh", "spread", "num_ranks"),
    [(means, (90, 110), 1), (lambda counts: 1 / counts.sum(axis=1, keepdims=True), (5, 200), 2)],
    ids=["counts that hardly differ", "means of ranks"],
)
def test_what_is_common_is_an_information(tmp_path, weigh, spread, num_ranks):
    found = findings(run_of(tmp_path / "run", weigh, spread=spread, num_ranks=num_ranks))
    assert {code: each.severity for code, each in found.items()} == {"token-weights-differ": "confirm"}


def rows_of_ranks(num_ranks, twice):
    """Micro-batches of all ranks weigh the same; where there are twice as many of them on a rank, so does it twice."""
    rows = healthy_rows(num_ranks, 8)
    for (_, rank), row in rows.items():
        counts = [32] * (8 if rank in twice else 4)
        row |= {"token_weights": list(itertools.chain(*(row_of(count, 1 / count / 4) for count in counts)))}
        row |= {"grads_factor": 1.0, "group_reduce_factor": [1.0] * 3}
    return rows


@pytest.mark.parametrize(
    ("num_ranks", "twice"), [(3, (2,)), (2, (0,)), (4, (1, 3)), (3, ()), (3, (0, 1, 2)), (3, (0, 1))]
)
def test_ranks_whose_tokens_weigh_another_number_than_one(tmp_path, num_ranks, twice):
    found = findings(write_run(tmp_path / "run", rows_of_ranks(num_ranks, twice)))
    odd = twice if 0 < 2 * len(twice) <= num_ranks else ()
    kinds = [(each.ranks, each.measured) for each in found.values() if each.evidence.get("kind") == "some-ranks"]
    assert kinds == ([(odd, 2.0)] if odd else [])
    assert "token-weights-differ" not in found


@pytest.mark.parametrize(("groups", "accused"), [([[0, 1], [2]], False), ([[0, 1, 2]], True)])
def test_groups_that_are_meant_to_differ_are_not_compared(tmp_path, groups, accused):
    run = write_run(tmp_path / "run", rows_of_ranks(3, (2,)), plan={"worker_groups": groups})
    kinds = [each.evidence.get("kind") for each in findings(run).values()]
    assert ("some-ranks" in kinds) is accused


def test_a_last_micro_batch_of_an_epoch_is_an_information(tmp_path):
    """Counts are equal, but for a few steps."""

    def weigh(counts):
        return 1 / counts / 3

    rows = healthy_rows(1, 8)
    for step in range(8):
        counts = np.array([32, 32, 3 if step == 5 else 32])
        rows[step, 0] |= {"token_weights": list(itertools.chain(*map(row_of, counts, weigh(counts))))}
        rows[step, 0] |= {"grads_factor": 1.0}
    finding = findings(write_run(tmp_path / "run", rows))["token-weights-differ"]
    assert (finding.severity, finding.step_first, finding.step_last) == ("confirm", 5, 5)


def test_rounding_is_no_difference(tmp_path):
    draw = np.random.default_rng(0)
    near = run_of(
        tmp_path / "near", lambda counts: fair(counts) * (1 + draw.uniform(-1, 1, counts.shape) * LEAST_DIFFERENCE / 3)
    )
    assert findings(near) == {}


@pytest.mark.parametrize(
    ("weigh", "because", "cause"),
    [
        (lambda counts: counts.shape[1] * fair(counts), "is not divided by the 3 micro-batches", "loss-not-divided"),
        (lambda counts: fair(counts) / counts.shape[1], "more by the 3 micro-batches", "loss-divided-twice"),
        (lambda counts: 1.1 * fair(counts), "and should weigh 1", "loss-scaled"),
        (lambda counts: 0.9 * fair(counts), "and should weigh 1", "loss-scaled"),
    ],
    ids=["undivided", "divided twice", "a constant", "a constant below 1"],
)
def test_a_wrong_sum_is_a_warning_with_a_cause_of_its_own(tmp_path, weigh, because, cause):
    run = run_of(tmp_path / "run", weigh)
    finding = findings(run)["loss-scale-wrong"]
    assert finding.severity == "warning"
    assert because in finding.claim
    assert trueline.diagnose(run).verdicts[0].cause == cause


@pytest.mark.parametrize(
    ("argument", "num_ranks", "factor", "clause"),
    [
        ("num_items_in_batch", 1, 3, "by the 3 micro-batches of a step: the model is given num_items_in_batch"),
        (
            "num_items_in_batch",
            2,
            6,
            "by the 3 micro-batches of a step on 2 ranks: the model is given num_items_in_batch",
        ),
        ("num_items_in_batch", 2, 3, "by the 3 micro-batches of a step: the model is given num_items_in_batch"),
        ("num_items_in_batch", 1, 1, None),
        ("num_items_in_batch", 1, 1.5, ", and should weigh 1"),
        ("count", 1, 3, "is not divided by the 3 micro-batches"),
    ],
)
def test_a_model_that_is_given_the_number_of_targets_and_does_not_divide(tmp_path, argument, num_ranks, factor, clause):
    facts = facts_text([InputFact("labels", False, "torch.int64", (8,)), InputFact(argument, False, "torch.int64", ())])
    run = run_of(tmp_path / "run", lambda counts: factor * fair(counts), num_ranks=num_ranks, input_facts=facts)
    found = findings(run).get("loss-scale-wrong")
    assert (found is None) == (clause is None)
    assert found is None or clause in found.claim
    if found is not None and found.evidence["kind"] == "count-unused":
        assert "model.accepts_loss_kwargs = False" in found.next[0]
        assert trueline.diagnose(run).verdicts[0].cause == "loss-not-divided"


def test_a_loss_that_is_multiplied_by_the_ranks_and_not_divided_by_a_count_that_is_given(tmp_path):
    facts = facts_text([InputFact("num_items_in_batch", False, "torch.int64", ())])
    weigh = lambda counts: counts.shape[0] * fair(counts)  # noqa: E731
    run = run_of(tmp_path / "run", weigh, num_ranks=2, num_micro=1, input_facts=facts)
    assert "is not divided by the 2 ranks: the model is given" in findings(run)["loss-scale-wrong"].claim


NEXT_TOKENS = [0, 0, 99, 0, 0, 0, 0, 99, 0, 0]
"""Of the places at which targets were looked for, the next one has them all."""


@pytest.mark.parametrize(
    ("samples", "places", "severity"), [(12, NEXT_TOKENS, "info"), (13, NEXT_TOKENS, "warning"), (12, None, "warning")]
)
def test_a_first_label_that_is_counted_but_no_target_is_an_information(tmp_path, samples, places, severity):
    run = run_of(
        tmp_path / "run",
        lambda counts: 1 / (counts.sum() + 12),
        spread=(60, 61),
        sample_digests=list(range(samples)),
        target_places=places,
    )
    assert findings(run)["loss-scale-wrong"].severity == severity


def test_half_of_a_mean_over_samples_is_a_warning(tmp_path):
    """As many targets as samples: half of the weight is also what one target more of each would leave."""
    run = run_of(tmp_path / "run", lambda counts: fair(counts) / 2, spread=(4, 5), sample_digests=list(range(12)))
    assert findings(run)["loss-scale-wrong"].severity == "warning"


def test_a_first_label_is_counted_whatever_the_lengths(tmp_path):
    run = run_of(
        tmp_path / "run",
        lambda counts: 1 / (counts.sum() + 12),
        sample_digests=list(range(12)),
        target_places=NEXT_TOKENS,
    )
    assert findings(run)["loss-scale-wrong"].evidence["kind"] == "first-counted"


@pytest.mark.parametrize(
    ("weigh", "fields", "num_ranks"),
    [
        (lambda counts: 3 * fair(counts), {"grads_factor": 1 / 3}, 1),
        (lambda counts: fair(counts) / 2, {"group_reduce_factor": [2.0] * 3}, 2),
    ],
    ids=["divided after backward", "added up by the reduction"],
)
def test_a_sum_that_is_mended_later_is_right(tmp_path, weigh, fields, num_ranks):
    run = run_of(tmp_path / "run", weigh, num_ranks=num_ranks, **fields)
    assert findings(run) == {}
    assert "loss-scale-wrong" not in not_run(run)


@pytest.mark.parametrize(
    ("weigh", "fields", "num_ranks", "why"),
    [
        (lambda counts: 1.0, {}, 1, "sum on purpose"),
        (lambda counts: 2 * fair(counts), {}, 2, "as many as there are ranks"),
        (lambda counts: 1024 * fair(counts), {}, 1, "loss scale"),
        (lambda counts: 3 * fair(counts), {"grads_factor": 0.1}, 1, "between backward and update"),
        (lambda counts: 3 * fair(counts), {"grads_factor": None}, 1, "between backward and update"),
        (lambda counts: fair(counts) * np.arange(1, 4) / 2, {}, 1, "weights of their own"),
    ],
    ids=["sum", "times the ranks", "unseen scale", "clipped", "changed", "tasks"],
)
def test_what_may_be_meant_cannot_be_told(tmp_path, weigh, fields, num_ranks, why):
    run = run_of(tmp_path / "run", weigh, num_ranks=num_ranks, **fields)
    assert findings(run) == {}
    assert why in not_run(run)["loss-scale-wrong"].why


@pytest.mark.parametrize(
    ("row", "reason"),
    [({"doubt": 2.0}, "by-design"), ({"doubt": 7.0}, "undecidable"), ({"within": 0.5}, "undecidable")],
)
def test_what_was_not_seen_has_its_reason(tmp_path, row, reason):
    rows = healthy_rows(1, 4)
    for each in rows.values():
        each |= {"token_weights": row_of(10, 0.1, **row), "grads_factor": 1.0}
    run = write_run(tmp_path / "run", rows)
    assert findings(run) == {}
    assert {each.reason for each in not_run(run).values()} == {reason}
