"""What a loss is given is read from its graph: a misuse is known by its operations, the right form is left alone."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from trueline.capture.probes.losses.loss_inputs import row_of
from trueline.schema.columns.loss_inputs import (
    ARGUMENTS_SWAPPED,
    CLASSES_SCRAMBLED,
    DIVERGENCE_BY_CLASS,
    DIVERGENCE_OF_PROBABILITIES,
    KINDS,
    LOG_MISSING,
    LOGITS_BOUNDED,
    LOGITS_CLIPPED,
    LOGITS_COSINES,
    ROWS_WITH_ROWS,
    SIGMOID_TWICE,
    SOFTMAX_OF_SAMPLES,
    SOFTMAX_TWICE,
    LossInputs,
)

B, T, V = 8, 6, 3
CPU = torch.device("cpu")
x = torch.randn(B, 4, generator=torch.Generator().manual_seed(0))
y, z = torch.arange(B) % V, x[:, 0]
classes, one = nn.Linear(4, V), nn.Linear(4, 1)
share = torch.full((B, V), 1 / V)
places, pictures = x[:, None].expand(B, T, 4) + torch.arange(T)[:, None], torch.ones(B, 4, 2, T // 2)
y_BT, convolved = torch.arange(B * T).view(B, T) % V, nn.Conv2d(4, V, 1)
prototypes = torch.eye(V).requires_grad_()
unit = F.normalize


def by_norm(rows):
    return rows / rows.norm(dim=-1, keepdim=True)


def looked(loss, ids=None, mask=None):
    return LossInputs.of(row_of([loss], ids, mask, CPU).tolist())


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("loss", "kind"),
    [
        (lambda: F.cross_entropy(classes(x).softmax(-1), y), SOFTMAX_TWICE),
        (lambda: F.cross_entropy(classes(x).softmax(-1).view(B, V), y, label_smoothing=0.1), SOFTMAX_TWICE),
        (lambda: F.cross_entropy(classes(x).softmax(-1).double(), share.double()), SOFTMAX_TWICE),
        (lambda: 0.5 * F.cross_entropy(classes(x).sigmoid(), y) + one(x).square().mean(), SOFTMAX_TWICE),
        (lambda: F.binary_cross_entropy_with_logits(one(x).sigmoid()[:, 0], (z > 0).float()), SIGMOID_TWICE),
        (lambda: F.nll_loss(classes(x).softmax(-1), y), LOG_MISSING),
        (lambda: F.nll_loss(classes(x), y), LOG_MISSING),
        (lambda: F.kl_div(classes(x).softmax(-1), share, reduction="batchmean"), DIVERGENCE_OF_PROBABILITIES),
        (lambda: F.kl_div(classes(x).log_softmax(-1), share), DIVERGENCE_BY_CLASS),
        (lambda: F.mse_loss(one(x), z), ROWS_WITH_ROWS),
        (lambda: F.mse_loss(one(x)[:, 0], z[:, None]), ROWS_WITH_ROWS),
        (lambda: F.l1_loss(one(x), z), ROWS_WITH_ROWS),
        (lambda: F.huber_loss(one(x), z) * 3, ROWS_WITH_ROWS),
        (lambda: ((one(x) - z) ** 2).mean(), ROWS_WITH_ROWS),
        (lambda: (z - one(x)).abs().mean(), ROWS_WITH_ROWS),
        (lambda: F.cross_entropy(classes(x).relu(), y), LOGITS_CLIPPED),
        (lambda: F.nll_loss(classes(x).relu().log_softmax(-1), y), LOGITS_CLIPPED),
        (lambda: F.binary_cross_entropy_with_logits(one(x).relu()[:, 0], (z > 0).float()), LOGITS_CLIPPED),
        (lambda: F.cross_entropy(classes(x).tanh(), y), LOGITS_BOUNDED),
        (lambda: F.cross_entropy(unit(classes(x)) @ unit(prototypes).T, y), LOGITS_COSINES),
        (lambda: F.cross_entropy(classes(places).view(B, V, T), y_BT), CLASSES_SCRAMBLED),
        (lambda: F.cross_entropy(classes(places).reshape(B, V, T), y_BT, reduction="sum"), CLASSES_SCRAMBLED),
        (lambda: F.cross_entropy(convolved(pictures).view(-1, V), y_BT.flatten()), CLASSES_SCRAMBLED),
        (lambda: F.nll_loss(classes(x).log_softmax(0), y), SOFTMAX_OF_SAMPLES),
        (lambda: F.nll_loss(classes(places).transpose(1, 2).log_softmax(0), y_BT), SOFTMAX_OF_SAMPLES),
        (lambda: F.binary_cross_entropy((z > 0).float(), one(x).sigmoid()[:, 0]), ARGUMENTS_SWAPPED),
        (lambda: F.binary_cross_entropy_with_logits((z > 0).float(), one(x)[:, 0]), ARGUMENTS_SWAPPED),
        (lambda: F.cross_entropy(by_norm(classes(x)) @ by_norm(classes(x + 1)).T, torch.arange(B)), LOGITS_COSINES),
    ],
)
def test_a_misuse_is_known_by_its_operations(loss, kind):
    assert looked(loss()).kinds == {kind}


@pytest.mark.parametrize(
    "loss",
    [
        lambda: F.cross_entropy(classes(x), y),
        lambda: F.cross_entropy(classes(x).log_softmax(-1), y),
        lambda: F.cross_entropy(classes(x.softmax(-1)), y),
        lambda: F.nll_loss(classes(x).log_softmax(-1), y),
        lambda: F.nll_loss((classes(x).softmax(-1) + 1e-8).log(), y),
        lambda: F.nll_loss((1 - classes(x).softmax(-1)) ** 2 * classes(x).log_softmax(-1), y),
        lambda: F.binary_cross_entropy(one(x).sigmoid()[:, 0], (z > 0).float()),
        lambda: F.kl_div(classes(x).log_softmax(-1), share, reduction="batchmean"),
        lambda: -(classes(x).softmax(-1) * share).sum(-1).mean(),
        lambda: F.mse_loss(one(x)[:, 0], z),
        lambda: F.mse_loss(one(x[:1]), z[:1, None]),
        lambda: ((one(x) - z[:, None]) ** 2).mean(),
        lambda: ((one(x)[:, 0].unsqueeze(1) - z) ** 2).mean(),
        lambda: (one(x) - one(x).T).relu().mean(),
        lambda: F.mse_loss(classes(x), z[:, None].expand(B, V)),
        lambda: F.mse_loss(nn.Linear(4, B)(x), torch.eye(B)),
        lambda: F.cross_entropy(classes(x.relu()), y),
        lambda: F.cross_entropy(classes(places).transpose(1, 2), y_BT),
        lambda: F.cross_entropy(classes(places).view(-1, V), y_BT.flatten()),
        lambda: F.cross_entropy(classes(places)[:, -1], y),
        lambda: F.nll_loss(classes(places).log_softmax(-1).view(-1, V), y_BT.flatten()),
        lambda: F.nll_loss(classes(places).log_softmax(2).transpose(1, 2), y_BT),
        lambda: F.cross_entropy(nn.Linear(4, V * T)(x).view(B, V, T), y_BT),
        lambda: F.cross_entropy(convolved(pictures).flatten(2), y_BT),
        lambda: F.cross_entropy(convolved(pictures), y_BT.view(B, 2, T // 2)),
        lambda: F.cross_entropy(convolved(pictures).permute(0, 2, 3, 1).reshape(-1, V), y_BT.flatten()),
        lambda: F.cross_entropy(convolved(pictures[:, :, :1, :1]).view(-1, V), y),
        lambda: F.cross_entropy(convolved(pictures)[:, :, 0, 0], y),
        lambda: F.cross_entropy(classes(x).tanh() * 10, y),
        lambda: F.cross_entropy(F.leaky_relu(classes(x)), y),
        lambda: F.cross_entropy(unit(classes(x)) @ unit(prototypes).T / 0.07, y),
        lambda: F.cross_entropy(unit(classes(x)) @ prototypes.T, y),
        lambda: F.cross_entropy(nn.Conv2d(4, V, 1)(x[:, :, None, None]).relu().mean((2, 3)), y),
    ],
)
def test_the_right_form_and_what_is_meant_are_left_alone(loss):
    assert looked(loss()) == LossInputs(frozenset(), *[looked(loss()).binary_targets, 0, 0, 0, 0])


def test_binary_targets_beyond_their_range_are_counted():
    signs = torch.tensor([-1.0, 1.0] * (B // 2))
    found = looked(F.binary_cross_entropy_with_logits(one(x)[:, 0], signs))
    assert (found.binary_targets, found.beyond, found.kinds) == (B, B // 2, frozenset())


@pytest.mark.parametrize(
    "loss",
    [
        F.mse_loss,
        F.smooth_l1_loss,
        F.huber_loss,
        F.l1_loss,
        lambda p, t: ((p - t) ** 2).mean(),
        lambda p, t: (t - p).abs().sum() + 3 * (one(x) ** 2).mean(),
        lambda p, t: F.mse_loss(p.view(V, B).contiguous(), t.view(V, B)),
    ],
)
def test_targets_that_the_last_activation_cannot_give_are_counted(loss):
    target = torch.linspace(-2.0, 2.0, B * V).view(B, V)
    beyond = {"relu": target < 0, "sigmoid": (target < 0) | (target > 1), "tanh": target.abs() > 1}
    for name, outside in beyond.items():
        counted = looked(loss(getattr(classes(x), name)(), target))
        numbers = [getattr(counted, f"{name}_targets"), getattr(counted, f"beyond_{name}")]
        assert numbers == [B * V, int(outside.sum())], name
        assert sum(counted.to_row()) == sum(numbers), "and nothing else"
        assert looked(loss(classes(x), target)) == LossInputs(frozenset(), 0, 0, 0, 0, 0)


def test_targets_that_overshoot_by_a_grey_level_are_within_reach():
    target = torch.linspace(0.0, 1.003, B * V).view(B, V)
    assert looked(F.mse_loss(classes(x).sigmoid(), target)).beyond_sigmoid == 0
    assert looked(F.mse_loss(classes(x).sigmoid(), target * 1.1)).beyond_sigmoid > 0


def test_a_difference_whose_sides_are_in_another_order_is_left_alone():
    target = torch.linspace(-2.0, 2.0, B * V).view(V, B)
    assert looked((classes(x).relu().T - target).abs().mean()) == LossInputs(frozenset(), 0, 0, 0, 0, 0)


def test_rows_of_several_labels_beside_a_softmax_are_counted():
    labels = F.one_hot(y, V).float()
    labels[:3, :2] = 1.0
    counted = looked(F.cross_entropy(classes(x), labels))
    assert (counted.marked_rows, counted.several_marks) == (B, 3)
    for loss in (
        -(labels * classes(x).log_softmax(-1)).sum(1).mean(),  # the likelihood of several draws
        -(labels * classes(x).log_softmax(-1)).sum() / B,
        F.cross_entropy(classes(x), labels / labels.sum(1, keepdim=True)),
        F.cross_entropy(classes(x), F.one_hot(y, V).float(), label_smoothing=0.1),
        -(labels * (unit(classes(x)) @ torch.eye(V) / 0.07).log_softmax(-1)).sum(1).mean(),
        F.binary_cross_entropy_with_logits(classes(x), labels),
    ):
        assert looked(loss).several_marks == 0


def test_rows_of_ctc_that_are_too_long_for_their_input_are_counted():
    targets, lengths = torch.ones(2, 4, dtype=torch.long), torch.tensor([4, 2])
    scores = nn.Linear(4, 5)(torch.ones(9, 2, 4)).log_softmax(-1)
    for short, num in ((9, 0), (6, 1)):  # four equal letters take three blanks between them
        loss = F.ctc_loss(scores, targets, torch.tensor([short, 9]), lengths, zero_infinity=True)
        counted = looked(loss)
        assert (counted.ctc_rows, counted.infinite_rows) == (2, num)


@pytest.mark.parametrize("flat", [False, True])
def test_targets_of_ctc_that_are_its_blank_are_counted_as_far_as_rows_are_long(flat):
    rows, lengths = torch.tensor([[1, 0, 2, 0], [3, 1, 0, 0]]), torch.tensor([3, 2])
    targets = torch.cat([row[:end] for row, end in zip(rows, lengths, strict=True)]) if flat else rows
    scores = nn.Linear(4, 5)(torch.ones(9, 2, 4)).log_softmax(-1)
    found = looked(F.ctc_loss(scores, targets, torch.tensor([9, 9]), lengths))
    assert (found.ctc_targets, found.blanks) == (5, 1)
    assert looked(F.ctc_loss(scores, targets, torch.tensor([9, 9]), lengths, blank=4)).blanks == 0


ids = torch.arange(B * T).view(B, T) % 50 + 1
mask = (torch.arange(T) < torch.arange(B)[:, None] % 3 + 2).long()
padded = ids * mask


def of_labels(labels, **settings):
    logits = nn.Linear(4, 60)(torch.ones(B, T, 4))
    return F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), **settings)


def test_targets_that_the_mask_leaves_out_are_counted_and_the_first_word_behind_padding_on_the_left_is_one_a_row():
    found = looked(of_labels(padded), padded, mask)
    assert (found.targets, found.padded, found.padded_rows) == (B * (T - 1), int((mask[:, :-1] == 0).sum()), B)
    assert looked(of_labels(padded.masked_fill(mask == 0, -100)), padded, mask).padded == 0
    left = padded.flip(1)
    found = looked(of_labels(left.masked_fill(mask.flip(1) == 0, -100)), left, mask.flip(1))
    assert found.padded == found.padded_rows == B


def test_targets_that_fill_rows_up_are_counted_where_there_is_no_mask():
    counted = looked(of_labels(padded), padded)
    assert (counted.unmasked_targets, counted.filled, counted.targets) == (
        B * (T - 1),
        int((mask[:, :-1] == 0).sum()),
        0,
    )
    assert counted.filled_rows == B
    assert looked(of_labels(padded, ignore_index=0), padded).filled == 0
    assert looked(of_labels(ids), ids).filled == 0


def test_labels_of_a_decoder_and_losses_that_a_script_masks_itself_are_left_alone():
    assert looked(of_labels(padded + 7), padded, mask).padded == 0
    assert looked((of_labels(padded, reduction="none") * mask[:, 1:].flatten()).mean(), padded, mask).padded == 0


def test_what_was_counted_adds_up_and_is_written_as_numbers():
    one_pass = LossInputs(frozenset(KINDS[:2]), 5, 1, 9, 4, 2, 7, 1, 4, 3)
    other = LossInputs(frozenset(KINDS[1:3]), 1, 0, 1, 1, 1, 8, 0, 2, 1)
    assert LossInputs.of((one_pass + other).to_row()) == LossInputs(frozenset(KINDS[:3]), 6, 1, 10, 5, 3, 15, 1, 6, 4)
    assert LossInputs.of(one_pass.to_row()[:6]) == LossInputs(frozenset(KINDS[:2]), 5, 1, 9, 4, 2)
