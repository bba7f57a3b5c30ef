"""What a loss adds without a gradient, its ratios of probabilities, and the outputs that its labels need."""

import copy
import itertools

import numpy as np
import pytest
import torch
from tests.unit.healthy_run import healthy_rows, write_run
from torch import nn
from torch.nn import functional

import trueline
from trueline.judge.facts.training_facts import read_facts
from trueline.laws.terms import outputs_unused, ratio_is_one, term_without_gradient
from trueline.schema.errors import CannotTell

STEPS = 6


def trained(out, loss_of, steps=STEPS, outputs=5, inputs=None, scale=None):
    """A Run of so many steps; ``inputs(step)`` are the inputs of a step, [12, 6]."""
    torch.manual_seed(3)
    draw = torch.Generator().manual_seed(1)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, outputs))
    updates = torch.optim.SGD(model.parameters(), lr=0.3)
    watch = trueline.watch(model, updates, out=out, plan={"every": 1})
    for step in range(steps):
        x = torch.randn(12, 6, generator=draw) if inputs is None else inputs(step)
        loss = loss_of(model, x, torch.randint(5, (12,), generator=draw))
        (loss if scale is None else loss * scale(step)).backward()
        updates.step()
        updates.zero_grad()
    watch.close()
    return trueline.open_run(out)


def likelihood(model, x, y):
    return functional.cross_entropy(model(x), y)


def error(model, x, y):
    return functional.mse_loss(model(x), x[:, :5])


def absolute_error(model, x, y):
    return (model(x) - x[:, :5]).abs().mean()


def binary(model, x, y):
    return functional.binary_cross_entropy_with_logits(model(x), functional.one_hot(y, 5).float())


def distance(model, x, y):
    return (model(x) - x[:, :5]).square().sum(-1).mean()


def soft(model, x, y):
    return -(x[:, :5].softmax(-1) * model(x).log_softmax(-1)).sum(-1).mean()


def penalty(model, x):
    return model(x).square().mean()


@pytest.mark.parametrize(
    ("weight_at", "marks"), [(lambda step: 0, {"term-times-zero"}), (lambda step: step / 9, set())]
)
def test_a_term_that_is_always_multiplied_by_zero(tmp_path, weight_at, marks):
    """A weight that begins at 0 and grows is none."""
    steps = itertools.count()

    def loss_of(model, x, y):
        return likelihood(model, x, y) + weight_at(next(steps)) * penalty(model, x)

    trained(tmp_path / "run", loss_of)
    (fact,) = (fact for fact in read_facts(tmp_path / "run").facts if fact.name == "loss-terms")
    assert set(fact.marks) == marks
    assert not marks or fact.marks["term-times-zero"].endswith("is multiplied by 0 at all 5 steps that were looked at")


@pytest.mark.in_turn
@pytest.mark.parametrize("fit", [likelihood, error, absolute_error, binary, distance, soft])
def test_a_term_that_is_detached_is_told_with_its_value(tmp_path, fit):
    added = []

    def loss_of(model, x, y):
        added.append(7 * penalty(model, x).detach())
        return fit(model, x, y) + added[-1]

    (finding,) = term_without_gradient.check(trained(tmp_path / "run", loss_of))
    assert finding.severity == "confirm"
    assert finding.evidence["values"]["0"] == pytest.approx(added[0].item(), rel=1e-4)
    assert finding.evidence["values"]["5"] == pytest.approx(added[5].item(), rel=1e-4)
    assert "no gradient" in finding.claim


@pytest.mark.in_turn
@pytest.mark.parametrize(
    "loss_of",
    [
        lambda model, x, y: likelihood(model, x, y) + penalty(model, x),
        lambda model, x, y: sum([likelihood(model, x, y), penalty(model, x)]),
        lambda model, x, y: 1 + likelihood(model, x, y),
        lambda model, x, y: likelihood(model, x, y) + torch.tensor(0.7),
        lambda model, x, y: (error(model, x, y) - 0.1).abs() + 0.1,
        lambda model, x, y: functional.kl_div(model(x).log_softmax(-1), x[:, :5].softmax(-1), reduction="batchmean"),
        lambda model, x, y: torch.stack([likelihood(model, x, y), torch.zeros(())]).sum(),
    ],
)
def test_numbers_that_stay_and_terms_with_a_gradient_are_left_alone(tmp_path, loss_of):
    assert term_without_gradient.check(trained(tmp_path / "run", loss_of)) == []


def test_a_detached_term_is_told_in_a_stack(tmp_path):
    def loss_of(model, x, y):
        return torch.stack([likelihood(model, x, y), penalty(model, x).detach()]).mean()

    assert term_without_gradient.check(trained(tmp_path / "run", loss_of))


def test_a_loss_scale_that_changes_is_no_term_that_does(tmp_path):
    run = trained(tmp_path / "run", lambda *of: 1 + likelihood(*of), scale=lambda step: 2.0 ** (step % 3))
    assert term_without_gradient.check(run) == []


def test_where_the_rest_cannot_be_computed_nothing_is_said(tmp_path):
    def loss_of(model, x, y):
        return model(x).cumsum(0).mean() + penalty(model, x).detach()

    with pytest.raises(CannotTell, match="cannot be computed"):
        term_without_gradient.check(trained(tmp_path / "run", loss_of))


def test_what_is_changed_in_place_before_backward_ends_no_probe(tmp_path):
    def loss_of(model, x, y):
        target = x[:, :5].clone()
        loss = functional.mse_loss(model(x), target) + penalty(model, x).detach()
        with torch.no_grad():
            target.data.add_(1)  # .data hides the change from autograd
        return loss

    run = trained(tmp_path / "run", loss_of)
    assert run.lists("constant_terms")
    assert not run.problems


def policy_loss(old_of, clamp=True):
    """PPO's, with the log-probabilities that ``old_of(model, x)`` returns."""

    def loss_of(model, x, y):
        ratio = (model(x).log_softmax(-1).gather(1, y[:, None]) - old_of(model, x).gather(1, y[:, None])).exp()
        gain = x[:, :1]
        return -torch.min(ratio * gain, ratio.clamp(0.8, 1.2) * gain if clamp else ratio * gain).mean()

    return loss_of


def of_now(model, x):
    with torch.no_grad():
        return model(x).log_softmax(-1)


def passes(step):
    """Two batches, four passes over both."""
    return torch.randn(24, 6, generator=torch.Generator().manual_seed(step // 8))[12 * (step % 2) :][:12]


def of_rollout():
    """Log-probabilities of the model as it was at the first batch of eight."""
    policies = []

    def old_of(model, x):
        if len(policies) % 8 == 0:
            policies.append(copy.deepcopy(model))
        else:
            policies.append(policies[-1])
        return of_now(policies[-1], x)

    return old_of


def test_a_ratio_to_itself_is_told_where_samples_come_again(tmp_path):
    (finding,) = ratio_is_one.check(trained(tmp_path / "run", policy_loss(of_now), 10, inputs=passes))
    assert finding.severity == "confirm"
    assert "exactly 1" in finding.claim
    assert "steps 2, 3 and 5" in finding.claim


def test_a_ratio_of_probabilities_that_are_divided_is_seen_where_it_is_clamped(tmp_path):
    def loss_of(model, x, y):
        ratio = model(x).softmax(-1).gather(1, y[:, None]) / of_now(model, x).exp().gather(1, y[:, None])
        # softmax and the exponential of its logarithm round differently
        return -(ratio.round(decimals=4).clamp(0.8, 1.2) * x[:, :1]).mean() + penalty(model, x)

    assert ratio_is_one.check(trained(tmp_path / "run", loss_of, 10, inputs=passes))


def test_a_ratio_to_the_rollout_is_left_alone(tmp_path):
    assert ratio_is_one.check(trained(tmp_path / "run", policy_loss(of_rollout()), 10, inputs=passes)) == []


def test_a_ratio_of_one_is_right_where_each_rollout_has_one_update(tmp_path):
    run = trained(tmp_path / "run", policy_loss(lambda model, x: model(x).log_softmax(-1).detach()), 10)
    assert ratio_is_one.check(run) == []
    fact = next(fact for fact in read_facts(run).facts if fact.name == "probability-ratios")
    assert fact.value["all_one"] == fact.value["steps"] == 6
    assert fact.value["clipped"] == 0


def test_the_clip_is_counted(tmp_path):
    run = trained(tmp_path / "run", policy_loss(lambda model, x: of_now(model, x) + 1), 10)
    fact = next(fact for fact in read_facts(run).facts if fact.name == "probability-ratios")
    assert fact.value["clipped"] == fact.value["elements"] == 6 * 12


def preference(reference_of):
    def loss_of(model, x, y):
        gain = model(x).log_softmax(-1) - of_now(reference_of(model), x)
        return -functional.logsigmoid(gain[:, 0] - gain[:, 1]).mean() + penalty(model, x)

    return loss_of


def test_a_reference_that_is_the_policy_is_told(tmp_path):
    (finding,) = ratio_is_one.check(trained(tmp_path / "run", preference(lambda model: model)))
    assert "compared with itself" in finding.claim


def test_a_reference_that_is_a_copy_is_left_alone(tmp_path):
    copies = []

    def reference_of(model):
        copies.append(copies[0] if copies else copy.deepcopy(model))
        return copies[0]

    assert ratio_is_one.check(trained(tmp_path / "run", preference(reference_of))) == []


def test_losses_without_ratios_are_not_judged(tmp_path):
    with pytest.raises(CannotTell):
        ratio_is_one.check(trained(tmp_path / "run", likelihood))


def test_outputs_that_no_label_has_are_told_with_the_layer(tmp_path):
    (finding,) = outputs_unused.check(trained(tmp_path / "run", likelihood, 34, outputs=1000))
    assert finding.severity == "confirm"
    assert finding.claim.startswith("2.weight makes 1,000 logits a sample")
    assert finding.evidence["highest"] == 4


def test_a_head_of_few_outputs_is_not_judged(tmp_path):
    with pytest.raises(CannotTell):
        outputs_unused.check(trained(tmp_path / "run", likelihood))


@pytest.mark.parametrize(
    ("row", "is_told"),
    [
        ((1000, 3, 16, 9, 9), True),
        ((1000, -1, 16, 9, 9), True),
        ((1000, 3, 16, 1, 9), False),  # sorted by class, or one class alone
        ((1000, 3, 16, 2, 199), False),  # two token ids for yes and no
        ((1000, 3, 16, 16, 199), True),
        ((1000, 3, 16, 16, 700), False),
        ((1000, 3, 4, 4, 9), False),  # too few
        ((1000, 3, 96, 9, 9), False),  # targets for each token
    ],
)
def test_labels_have_to_fill_the_first_outputs(tmp_path, row, is_told):
    rows = healthy_rows(1, 12)
    for step in range(8):
        samples = np.arange(16 * step, 16 * step + 16).astype(np.uint64)
        rows[step, 0] |= {"head_labels": list(row), "sample_digests": samples}
    findings = outputs_unused.check(write_run(tmp_path / "run", rows))
    assert bool(findings) is is_told
    if is_told:
        assert findings[0].claim.startswith("head" if row[1] == 3 else "The last layer")


def test_a_loss_with_label_smoothing_is_read_term_by_term(tmp_path):
    """torch multiplies its terms by numbers that are no tensors."""
    run = trained(tmp_path / "run", lambda model, x, y: functional.cross_entropy(model(x), y, label_smoothing=0.1))
    assert not [finding for finding in run.live_findings if finding.code == "watch-degraded"]
    (fact,) = (fact for fact in read_facts(run).facts if fact.name == "loss-terms")
    assert [term["function"] for term in fact.value["terms"]] == ["cross-entropy", None]
    assert fact.value["terms"][0]["factor"] == pytest.approx(0.9)
