"""A4. What a loss is made of does nothing: a term without a gradient, outputs that no label has, ratios that are 1.

Who had it: deep_cage#16 (a smoothness term of detached weights), fine-tuning with `fc.out_features = classes`
(pytorch-tiny-imagenet#3), PPO whose old log-probabilities are computed again at each pass (higgsfield#20), preference
training whose reference is the policy (POVID#11).
Planted: each of these.
Twin: the term with its gradient; a head of as many outputs as there are labels; the log-probabilities of the rollout;
a copy as the reference.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from gallery.entry import variants
from gallery.entry_context import EntryContext
from gallery.problems import Vision
from gallery.training import BATCH_SIZE, batches_of, fit, sgd
from gallery.witness import trains_differently

STEPS, PASSES = 12, 4
OUTPUTS = 100


def _model(outputs: int = Vision.num_classes) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.Tanh(), nn.Linear(16, outputs))


def detached_term(ctx: EntryContext, faulty: bool) -> nn.Module:
    """A penalty of confident predictions, made of detached logits."""

    def loss_of(model: nn.Module, batch: Any) -> Tensor:
        logits_BC = model(batch["image"])
        probabilities_BC = (logits_BC.detach() if faulty else logits_BC).softmax(-1)
        return functional.cross_entropy(logits_BC, batch["label"]) + 0.5 * probabilities_BC.square().sum(-1).mean()

    model = _model()
    return fit(ctx, Vision(), model, optimizer=sgd(model, lr=0.3), steps=STEPS, loss_of=loss_of)


def wide_head(ctx: EntryContext, faulty: bool) -> nn.Module:
    """The head of another data set."""
    model = _model(OUTPUTS if faulty else Vision.num_classes)
    return fit(
        ctx, Vision(), model, optimizer=sgd(model), batches=batches_of(ctx, Vision(), batch_size=16), steps=STEPS
    )


def ratio_of_itself(ctx: EntryContext, faulty: bool) -> nn.Module:
    """Passes over rollouts of two batches."""
    model, draw = _model(), torch.Generator().manual_seed(1)
    optimizer = sgd(model, lr=0.3)
    images = Vision().dataset(2 * BATCH_SIZE * STEPS).columns["image"]
    watching = ctx.watch(model, optimizer)
    for update in range(STEPS):
        rollout, of_pass = divmod(update, 2 * PASSES)
        rows = torch.arange(BATCH_SIZE) + BATCH_SIZE * (2 * rollout + of_pass % 2)
        image, action_B1 = images[rows], rows[:, None] % Vision.num_classes
        if of_pass == 0:
            policy = copy.deepcopy(model)
        with torch.no_grad():
            old_B1 = (model if faulty else policy)(image).log_softmax(-1).gather(1, action_B1)
        batch = {"image": image}
        with watching.step(batch):
            ratio_B1 = (model(image).log_softmax(-1).gather(1, action_B1) - old_B1).exp()
            gain_B1 = torch.randn(len(rows), 1, generator=draw)
            loss = -torch.min(ratio_B1 * gain_B1, ratio_B1.clamp(0.8, 1.2) * gain_B1).mean()
            watching.loss(loss.detach(), float(len(rows)))
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        ctx.note([batch], loss.item())
    watching.close()
    return model


def reference_of_itself(ctx: EntryContext, faulty: bool) -> nn.Module:
    """Preferences for one of two classes, against a reference."""
    model = _model()
    reference = model if faulty else copy.deepcopy(model)

    def loss_of(model: nn.Module, batch: Any) -> Tensor:
        image, label_B1 = batch["image"], batch["label"][:, None]
        with torch.no_grad():
            base_BC = reference(image).log_softmax(-1)
        gain_BC = model(image).log_softmax(-1) - base_BC
        chosen_B1, rejected_B1 = gain_BC.gather(1, label_B1), gain_BC.gather(1, (label_B1 + 1) % Vision.num_classes)
        # a second term moves the weights, so that the loss does not stay where it is
        return -functional.logsigmoid(chosen_B1 - rejected_B1).mean() + 0.1 * model(image).square().mean()

    return fit(ctx, Vision(), model, optimizer=sgd(model, lr=0.3), steps=STEPS, loss_of=loss_of)


_fault = variants("A4", ("ratio-is-one",), trains_differently, world_size=1, ranks=(0,), family="parts of a loss")

ENTRIES = (
    _fault(
        "",
        "a term of the loss is detached",
        detached_term,
        must_find=("term-without-gradient",),
        causes=("term-detached",),
    ),
    _fault(
        "outputs",
        "a head of 100 outputs for four classes",
        wide_head,
        must_find=("outputs-unused",),
        causes=("head-of-other-classes",),
    ),
    _fault("ratio", "the old log-probabilities are the new ones", ratio_of_itself, causes=("compared-with-itself",)),
    _fault("reference", "the reference is the policy", reference_of_itself, causes=("compared-with-itself",)),
)
