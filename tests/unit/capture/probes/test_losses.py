"""The recorded loss is what was trained, as a mean over the rank's own tokens where known, against slow truths."""

from __future__ import annotations

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.checkpoint import checkpoint

import trueline
from trueline.capture.probes.losses.descent import row_of
from trueline.capture.probes.losses.loss_choice import PER_TOKEN, choose

CLASSES, STEPS, MICROS = 11, 4, 3
ITEMS = 1000
"""Tokens of all ranks, as a framework passes them."""


def batch(seed):
    """Inputs and labels of uneven length: the first positions have none."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, CLASSES, (3, 8), generator=generator)
    for row in labels:
        row[: int(torch.randint(1, 7, (1,), generator=generator))] = -100
    return torch.randn(3, 8, 6, generator=generator), labels


class LM(nn.Module):
    """Returns what Hugging Face's models do, divided by ``num_items_in_batch`` where that is passed."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(6, CLASSES)

    def forward(self, x, labels=None, num_items_in_batch=None, log_probs=False):
        logits = self.head(x)
        if log_probs:  # as TRL's models do
            mask = labels[:, 1:] != -100
            taken = labels[:, 1:].clamp(min=0).unsqueeze(-1)
            found = torch.log_softmax(logits[:, :-1], dim=-1).gather(-1, taken).squeeze(-1) * mask
            return SimpleNamespace(log_probs=found, label_mask=mask, loss=-found.detach().sum() / mask.sum())
        if labels is None:
            return SimpleNamespace(logits=logits, loss=None)
        total = token_sum(logits, labels)
        count = (labels[:, 1:] != -100).sum() if num_items_in_batch is None else num_items_in_batch
        return SimpleNamespace(logits=logits, loss=total / count)


def token_sum(logits, labels):
    return cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), reduction="sum")


def preferred(logits):
    """Another loss of the same logits, as preferences have."""
    return -nn.functional.logsigmoid(logits[:, -1, 0] - logits[:, -1, 1]).mean()


def mean_over_tokens(model, batches):
    """The truth: each token by itself, in float64."""
    with torch.no_grad():
        losses = [
            -torch.log_softmax(model.head(x)[row, at].double(), dim=-1)[labels[row, at + 1]]
            for x, labels in batches
            for row in range(len(labels))
            for at in range(labels.shape[1] - 1)
            if labels[row, at + 1] >= 0
        ]
    return float(torch.stack(losses).mean()), len(losses)


def mean_over_batches(model, batches):
    with torch.no_grad():
        return float(np.mean([float(model(x, labels).loss) for x, labels in batches])), None


def mean_of_preferences(model, batches):
    with torch.no_grad():
        return float(np.mean([float(preferred(model(x).logits)) for x, _ in batches])), None


def by_items(model, x, labels):
    loss = model(x, labels, num_items_in_batch=torch.tensor(ITEMS)).loss
    loss *= 4  # as Trainer undoes the average over four ranks
    loss.backward()


def by_sum(model, x, labels):
    loss = token_sum(model(x).logits, labels)
    (loss * MICROS * 4 / ITEMS / MICROS).backward()


def by_log_probs(model, x, labels):
    (-model(x, labels, log_probs=True).log_probs.sum() / ITEMS * 4).backward()


def divided(model, x, labels):
    (model(x, labels).loss / MICROS).backward()


def scaled(model, x, labels):
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**16)
    scaler.scale(model(x, labels).loss / MICROS).backward()
    for param in model.parameters():
        param.grad /= 2.0**16


def scaled_by_the_framework(model, x, labels):
    (model(x, labels).loss / MICROS * 2.0**16).backward()
    for param in model.parameters():
        param.grad /= 2.0**16


def through_autograd(model, x, labels):
    torch.autograd.backward([model(x, labels).loss / MICROS])


def weighted_by_gradient(model, x, labels):
    model(x, labels).loss.backward(torch.tensor(1 / MICROS))


def of_preferences(model, x, labels):
    (preferred(model(x, labels).logits) / MICROS).backward()


def checkpointed(model, x, labels):
    logits = model(x).logits
    loss = checkpoint(lambda z: token_sum(z, labels) / (labels[:, 1:] != -100).sum(), logits, use_reentrant=True)
    (loss / MICROS).backward()


def beside_another_model(model, x, labels):
    other = nn.Linear(6, 1)
    (model(x, labels).loss / MICROS).backward()
    other(x).square().mean().backward()


WAYS = {
    by_items: (mean_over_tokens, PER_TOKEN),
    by_sum: (mean_over_tokens, PER_TOKEN),
    by_log_probs: (mean_over_tokens, PER_TOKEN),
    divided: (mean_over_batches, "backward"),
    scaled: (mean_over_batches, "backward"),
    scaled_by_the_framework: (mean_over_batches, "backward"),
    through_autograd: (mean_over_batches, "backward"),
    weighted_by_gradient: (mean_over_batches, "backward"),
    of_preferences: (mean_of_preferences, "backward"),
    checkpointed: (mean_over_batches, "backward"),
    beside_another_model: (mean_over_batches, "backward"),
}


def train(out, way, *, watched=True, truth=None):
    """The truth of each step, and the parameters at the end."""
    torch.manual_seed(1)
    model = LM()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    truths = []
    watch = trueline.watch(model, optimizer, out=out) if watched else None
    for step in range(STEPS):
        batches = [batch(10 * step + micro) for micro in range(MICROS)]
        if truth is not None:
            model.eval()
            truths.append(truth(model, batches))
            model.train()
        for x, labels in batches:
            way(model, x, labels)
        optimizer.step()
        optimizer.zero_grad()
    if watch is not None:
        watch.close()
    return truths, [param.detach().clone() for param in model.parameters()]


@pytest.mark.in_turn
@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_the_loss_is_what_was_trained(tmp_path, way):
    truth, source = WAYS[way]
    truths, params = train(tmp_path / "run", way, truth=truth)
    run = trueline.open_run(tmp_path / "run")
    assert run.live_findings == []
    assert run.pivot("loss")[0].ravel() == pytest.approx([loss for loss, _ in truths], rel=2e-6)  # a float32 sum
    counts = [tokens for _, tokens in truths if tokens is not None]
    assert not counts or run.pivot("tokens")[0].ravel().tolist() == counts
    assert run.env[0].loss_source == source
    _, unwatched = train(None, way, watched=False)
    assert all(torch.equal(a, b) for a, b in zip(params, unwatched, strict=True))


class Classifier(nn.Module):
    """Returns what Hugging Face's models for sequences do, which take ``num_items_in_batch`` and do not need it."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(6, CLASSES)

    def forward(self, x, labels=None, num_items_in_batch=None):
        logits = self.head(x)
        return SimpleNamespace(logits=logits, loss=cross_entropy(logits, labels))


def test_a_label_of_a_sample_follows_no_other(tmp_path):
    torch.manual_seed(1)
    model = Classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    watch = trueline.watch(model, optimizer, out=tmp_path / "run")
    losses = []
    for _ in range(STEPS):
        loss = model(torch.randn(8, 6), labels=torch.randint(0, CLASSES, (8,)), num_items_in_batch=torch.tensor(8)).loss
        losses.append(loss.item())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    watch.close()
    run = trueline.open_run(tmp_path / "run")
    assert run.pivot("loss")[0].ravel() == pytest.approx(losses, rel=2e-6)  # a float32 mean
    assert run.pivot("tokens")[0].ravel().tolist() == [8] * STEPS
    assert run.manifest.notes == []


def test_where_the_model_returns_another_loss_the_run_says_which_was_taken(tmp_path):
    train(tmp_path / "run", of_preferences)
    run = trueline.open_run(tmp_path / "run")
    (note,) = run.manifest.notes
    assert "what backward was called on, not the loss in the model's output" in note
    assert all(len(parts) == MICROS for parts in run.lists("part_losses").values()), "no losses of the other kind"


def test_a_loss_by_hand_wins(tmp_path):
    model = LM()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with trueline.watch(model, optimizer, out=tmp_path / "run") as watch:
        for step in range(2):
            x, labels = batch(step)
            preferred(model(x, labels).logits).backward()
            watch.loss(7.0 + step)
            optimizer.step()
    run = trueline.open_run(tmp_path / "run")
    assert run.pivot("loss")[0].ravel().tolist() == [7.0, 8.0]
    assert run.env[0].loss_source == "given"


# -- the graph that backward starts from


def found(loss):
    value, total, count = row_of(loss).tolist()
    assert value == float(loss.detach())
    return total, count


def test_a_sum_over_tokens_is_seen_through_what_scales_it():
    x, labels = batch(0)
    logits = nn.Linear(6, CLASSES)(x)
    total = token_sum(logits, labels)
    truth = pytest.approx(float(total.detach()), rel=1e-6), int((labels[:, 1:] != -100).sum())
    for loss in (
        total / ITEMS,
        total / torch.tensor(ITEMS) * 4,
        torch.tensor(3.0) * (total * -1).neg().reshape(1).squeeze().mean(),
        total.double().div(7).sum(),
    ):
        assert found(loss) == truth
    assert found(2 * logits.sum())[0] == pytest.approx(float(logits.detach().sum()), rel=1e-6)


def test_what_is_no_multiple_of_a_sum_shows_none():
    x, labels = batch(0)
    logits = nn.Linear(6, CLASSES)(x)
    other = 1 / logits.square().mean()
    for loss in (logits.mean(), token_sum(logits, labels) + other, token_sum(logits, labels) * other, 1 / logits.sum()):
        assert np.isnan(found(loss)).all()


@pytest.mark.parametrize("returns", [True, False])
def test_a_short_window_that_was_divided_as_a_full_one_is_a_mean_or_is_noted(tmp_path, returns):
    """As HF Accelerate does at the end of an epoch whose batches do not come out even."""
    model = LM()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    means = []
    with trueline.watch(model, optimizer, out=tmp_path):
        for micros in (4, 4, 3, 4):
            losses = [model(*batch(seed)).loss for seed in range(micros)] if returns else []
            losses = losses or [preferred(model(batch(seed)[0]).logits) for seed in range(micros)]
            for loss in losses:
                (loss / 4).backward()
            means.append(torch.stack(losses).mean().item())
            optimizer.step()
            optimizer.zero_grad()
    run = trueline.open_run(tmp_path)
    recorded = run.pivot("loss")[0].ravel().tolist()
    notes = [note for note in run.manifest.notes if "it is too small if each was divided by 4" in note]
    if returns:
        assert recorded == pytest.approx(means, rel=2e-6)
        assert notes == []
    else:
        assert recorded == pytest.approx([*means[:2], 0.75 * means[2], means[3]], rel=2e-6)
        assert len(notes) == 1


def test_two_forward_passes_of_one_backward_are_no_window(tmp_path):
    """As the discriminator of a GAN has them, which sees real and made samples."""
    model = nn.Linear(6, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with trueline.watch(model, optimizer, out=tmp_path):
        for seed in range(4):
            x, _ = batch(seed)
            loss = nn.functional.softplus(-model(x)).mean() + nn.functional.softplus(model(-x)).mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    assert not any("fewer micro-batches" in note for note in trueline.open_run(tmp_path).manifest.notes)


# -- which number it is


def chosen(trained, returned=(), workers=2):
    rows = (np.array(rows, dtype=np.float64).reshape(-1, 3) for rows in (trained, returned))
    return choose(*rows, workers=workers, rel=1e-5, step=0)


NAN = math.nan


def test_shares_of_all_ranks_tokens_become_the_mean_over_those_of_this_rank():
    returned = [(0.3, 300.0, 60.0), (0.1, 100.0, 40.0)]
    choice = chosen([(0.6, NAN, NAN), (0.2, NAN, NAN)], returned)  # times two workers
    assert (choice.loss, choice.tokens, choice.source) == (4.0, 100.0, PER_TOKEN)
    assert choice.parts == [5.0, 2.5]


def test_a_rank_that_multiplies_its_loss_is_that_many_times_the_others_in_their_unit():
    returned = [(0.3, 300.0, 60.0), (0.1, 100.0, 40.0)]
    choice = chosen([(0.9, NAN, NAN), (0.3, NAN, NAN)], returned)  # times two workers, and 1.5
    assert (choice.loss, choice.tokens, choice.source) == (pytest.approx(6.0), 100.0, PER_TOKEN)
    mean = chosen([(4.2, NAN, NAN)], [(0.3, 400.0, 100.0)])  # 1.05 times the mean over the rank's own tokens
    assert (mean.loss, mean.source) == (4.2, "backward")
    other = chosen([(0.9, NAN, NAN), (0.7, NAN, NAN)], returned)
    assert (other.loss, other.source) == (1.6, "backward")


def test_means_that_nobody_divides_by_the_micro_batches_are_said_to_add_up():
    added = chosen([(2.5, 150.0, 60.0), (5.0, 200.0, 40.0)])
    assert (added.loss, added.source) == (3.5, PER_TOKEN)
    assert "called on the mean of each of 2 micro-batches, and their gradients add up." in added.note
    assert "backward divides their sum by another number" in chosen([(4.0, 150.0, 60.0), (5.0, 200.0, 40.0)]).note


def test_a_loss_that_is_a_mean_already_stays_as_it_is():
    choice = chosen([(1.25, 150.0, 60.0), (2.5, 200.0, 40.0)])  # halves of two means, of other numbers of tokens
    assert (choice.loss, choice.source, choice.note) == (3.75, "backward", "")


def test_only_a_scale_that_float16_needs_is_taken_out():
    assert chosen([(5.0 * 2**10, NAN, NAN)], [(5.0, NAN, NAN)]).loss == 5.0
    assert chosen([(10.0, NAN, NAN)], [(5.0, NAN, NAN)], workers=1).loss == 10.0, "doubled on purpose, or by mistake"


def test_what_is_not_finite_is_the_loss_and_decides_nothing():
    choice = chosen([(math.inf, NAN, NAN)], [(5.0, NAN, NAN)])
    assert (choice.loss, choice.note) == (math.inf, "")
    assert chosen([], []) is None
