"""Weights of classes that go with their frequency are told, and those that go against it are left alone."""

import pytest
import torch
from tests.unit.asked import asked
from tests.unit.healthy_run import healthy_rows, write_run
from torch import nn
from torch.nn import functional

import trueline
from trueline.capture.probes.losses.class_weights import class_weights
from trueline.capture.probes.losses.summands import summands_of
from trueline.laws.terms.class_weights_reversed import check
from trueline.schema.columns.loss_values import BY_CLASS, BY_POSITIVE, ClassWeights
from trueline.schema.errors import CannotTell

CODE = "class-weights-reversed"
SHARES = torch.tensor([0.75, 0.2, 0.05])
INVERSE = 1 / (3 * SHARES)
N = 60


def labels():
    """60 of three classes, each with a target."""
    return torch.tensor([0] * 45 + [1] * 12 + [2] * 3)[torch.randperm(N, generator=torch.Generator().manual_seed(2))]


def weighed(loss):
    """What the first weighed term of a loss is seen to have."""
    rows = [class_weights(part) for part in summands_of(loss).parts]
    return next((ClassWeights.from_row(row.tolist()) for row in rows if row is not None), None)


def logits(*shape):
    return torch.randn(*shape, requires_grad=True)


@pytest.mark.parametrize(
    "loss_of",
    [
        lambda x, y: functional.cross_entropy(x, y, weight=SHARES),
        lambda x, y: functional.cross_entropy(x, y, SHARES, label_smoothing=0.1) / 4 + x.square().mean(),
        lambda x, y: functional.nll_loss(x.log_softmax(-1), y, SHARES, reduction="sum") / N,
        lambda x, y: (functional.cross_entropy(x, y, reduction="none") * SHARES[y]).mean(),
        lambda x, y: (SHARES[y] * functional.cross_entropy(x, y, reduction="none")).sum() / SHARES[y].sum(),
        lambda x, y: functional.cross_entropy(x, y, weight=SHARES, reduction="none").mean(),
    ],
)
def test_weights_are_read_with_the_targets_of_each_class(loss_of):
    y = labels()
    row = weighed(loss_of(logits(N, 3), y))
    assert row.kind == BY_CLASS
    assert row.weights == pytest.approx(SHARES.tolist())
    assert row.counts == tuple(torch.bincount(y, minlength=3).tolist())
    assert row.targets == row.units == N
    assert row.spread == pytest.approx(0, abs=1e-7)


def test_labels_of_pixels_count_as_images_and_ignored_ones_not():
    y = labels().view(5, 3, 4)
    y[0, 0, 0] = -100
    row = weighed(functional.cross_entropy(logits(5, 3, 3, 4), y, weight=SHARES))
    assert (row.units, row.targets) == (5, N - 1)


@pytest.mark.parametrize(
    "loss_of",
    [
        lambda x, y: functional.binary_cross_entropy_with_logits(x, y, weight=0.2 + 0.6 * y),
        lambda x, y: functional.binary_cross_entropy(x.sigmoid(), y, weight=0.2 + 0.6 * y),
        lambda x, y: (functional.binary_cross_entropy_with_logits(x, y, reduction="none") * (0.2 + 0.6 * y)).mean(),
    ],
)
def test_weights_of_binary_targets_are_of_two_classes(loss_of):
    y = (labels() > 0).float()
    row = weighed(loss_of(logits(N), y))
    assert row.kind == BY_CLASS
    assert row.weights == pytest.approx((0.2, 0.8))
    assert row.counts == (N - y.sum(), y.sum())


def test_pos_weight_is_of_each_output():
    y = functional.one_hot(labels(), 3).float()
    row = weighed(functional.binary_cross_entropy_with_logits(logits(N, 3), y, pos_weight=SHARES))
    assert (row.kind, row.targets) == (BY_POSITIVE, N)
    assert row.counts == tuple(y.sum(0).tolist())
    row = weighed(functional.binary_cross_entropy_with_logits(logits(N, 1), y[:, :1], pos_weight=SHARES[:1]))
    assert row.counts == (y[:, 0].sum(),)


@pytest.mark.parametrize(
    "loss_of",
    [
        functional.cross_entropy,
        lambda x, y: 2 * functional.cross_entropy(x, y),
        # a focal loss has weights beside a factor of each sample that has a gradient
        lambda x, y: (
            SHARES[y]
            * (1 - x.softmax(-1).gather(1, y[:, None])[:, 0])
            * functional.cross_entropy(x, y, reduction="none")
        ).mean(),
    ],
)
def test_losses_without_weights_of_classes_have_none(loss_of):
    assert weighed(loss_of(logits(N, 3), labels())) is None


def run_of(tmp_path, weights, counts, *, kind=BY_CLASS, targets=None, spread=0.0, units=1.0):
    """Ten looks, each with these ``counts``."""
    rows = healthy_rows(1, 12)
    targets = sum(counts) if targets is None else targets
    for step in range(12):
        rows[step, 0] |= {"loss_terms": [0.0] * 16}
        if step < 10:
            row = [kind, spread, units * targets, targets, *weights, *counts]
            rows[step, 0] |= {"class_weights": [float(x) for x in row]}
    return write_run(tmp_path / "run", rows)


def test_the_rarer_class_with_the_smaller_weight_is_told(tmp_path):
    (finding,) = check(run_of(tmp_path, (0.91, 0.09), (466, 46)))
    assert finding.severity == "confirm"
    assert finding.claim == (
        "Class 1 is the rarer one (9 % of 5,120 targets) and has the smaller weight (0.09; class 0 has 0.91)."
    )


def test_weights_of_many_classes_are_told_by_the_ends(tmp_path):
    (finding,) = check(run_of(tmp_path, (0.2, 0.75, 0.05, 0), (20, 75, 5, 100)))
    assert finding.claim == (
        "The loss weighs classes by their frequency: class 2, 2.5 % of 2,000 targets, has the weight 0.05, and "
        "class 1, 38 %, has 0.75."
    )


@pytest.mark.parametrize(
    ("weights", "counts"),
    [
        ((0.09, 0.91), (466, 46)),
        ((0.5, 0.5), (466, 46)),
        ((0.3, 2.0, 5.0), (75, 20, 5)),
        ((2.0, 0.3, 5.0), (75, 20, 5)),  # one of them by what errors cost
        ((0.0, 1.0), (100, 5)),  # masked
        ((0.0, 1.0, 1.0), (100, 5, 50)),
        ((1.0, 0.1), (5, 100)),  # many of no object, as in detection
    ],
)
def test_weights_against_the_frequency_or_for_another_reason_are_left_alone(tmp_path, weights, counts):
    assert check(run_of(tmp_path, weights, counts)) == []


@pytest.mark.parametrize(
    ("weights", "counts", "more"),
    [
        ((0.6, 0.4), (3, 2), {}),  # too few
        ((0.6, 0.4), (60, 50), {}),  # nearly alike
        ((0.91, 0.09), (466, 46), {"units": 1e-3}),  # pixels of few images
        ((0.91, 0.09), (466, 46), {"spread": 0.1}),  # of samples
    ],
)
def test_where_targets_do_not_show_it_it_cannot_tell(tmp_path, weights, counts, more):
    with pytest.raises(CannotTell):
        check(run_of(tmp_path, weights, counts, **more))


@pytest.mark.parametrize(
    ("weights", "counts", "is_told"),
    [
        ((0.1,), (46,), True),
        ((10.0,), (46,), False),
        ((1.0,), (46,), False),
        ((0.1,), (466,), False),
        ((3.0,), (466,), False),  # as who wants to miss none
        ((0.1, 0.2), (46, 90), True),
        ((0.1, 5.0), (46, 90), False),
    ],
)
def test_a_pos_weight_below_one_is_told_where_positives_are_rarer(tmp_path, weights, counts, is_told):
    findings = check(run_of(tmp_path, weights, counts, kind=BY_POSITIVE, targets=512))
    assert bool(findings) is is_told
    if is_told:
        assert "pos_weight is 0.1" in findings[0].claim
        assert "(9 % of 5,120)" in findings[0].claim


@pytest.mark.parametrize(("weight", "is_told"), [(SHARES, True), (INVERSE, False)])
def test_a_training_is_told_and_watching_changes_no_bit_of_it(tmp_path, weight, is_told):
    def losses(out=None):
        torch.manual_seed(3)
        model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        watch = None if out is None else trueline.watch(model, optimizer, out=out, plan={"every": 1})
        values = []
        for _ in range(8):
            for _micro in range(2):
                y = torch.multinomial(SHARES, N, replacement=True)
                loss = functional.cross_entropy(model(torch.randn(N, 6)), y, weight=weight) / 2
                loss.backward()
                values.append(loss.detach())
            optimizer.step()
            optimizer.zero_grad()
        if watch is not None:
            watch.close()
        return values

    assert losses(tmp_path / "run") == losses()
    findings, why = asked(tmp_path / "run", CODE)
    assert why == []
    assert bool(findings) is is_told
    if is_told:
        assert sum(findings[0].evidence["counts"]) >= 4 * 2 * N
