"""D6. On one rank no label is left: its loss is 0/0, or it adds nothing.

Who had it: fine-tuning on responses only, where truncation cuts the whole response off (Hugging Face and TRL threads
on NaN losses with `train_on_responses_only`), and packing with a wrong ignore index. With a mean the rank's loss is
NaN and so is everybody's gradient; with a sum over a clamped count the rank silently contributes zeros.
Planted: the labels of rank 1 are all ignored, from one step on or for one step.
Twin: very uneven numbers of labels, never none.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import Tensor, nn
from torch.nn import functional

from gallery.entry import variants
from gallery.entry_context import EntryContext
from gallery.problems import IGNORED, CausalLM
from gallery.sharding import sharded
from gallery.training import batches_of, fit, mean_gradients
from gallery.witness import nonfinite, silent_loss

TRIGGER = 5


class _SumOverCount(CausalLM):
    """The loss that people write to avoid 0/0."""

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        logits_BLV, labels_BL = model(batch["input_ids"])[:, :-1], batch["labels"][:, 1:]
        total = functional.cross_entropy(logits_BLV.flatten(0, 1).float(), labels_BL.flatten(), reduction="sum")
        return total / (labels_BL != IGNORED).sum().clamp(min=1)


def mean_of_nothing(ctx: EntryContext, faulty: bool) -> nn.Module:
    """One batch of rank 1 has no label, and the loss is a mean."""
    return _train(ctx, CausalLM(), lambda step: faulty and ctx.rank == 1 and step == TRIGGER)


def zeros_once(ctx: EntryContext, faulty: bool) -> nn.Module:
    """One batch of rank 1 has no label, and the count is clamped."""
    return _train(ctx, _SumOverCount(), lambda step: faulty and ctx.rank == 1 and step == TRIGGER)


def zeros_for_good(ctx: EntryContext, faulty: bool) -> nn.Module:
    """Rank 1 never has a label, and the count is clamped."""
    return _train(ctx, _SumOverCount(), lambda step: faulty and ctx.rank == 1)


def zeros_by_hand(ctx: EntryContext, faulty: bool) -> nn.Module:
    """One batch of rank 2 of four has no label, the count is clamped, and the loop reduces by hand."""
    problem = _SumOverCount()
    model = problem.model()
    batches = _masked(batches_of(ctx, problem), lambda step: faulty and ctx.rank == 2 and step == TRIGGER)
    return fit(ctx, problem, model, batches=batches, after_backward=lambda step: mean_gradients(model.parameters()))


def zeros_sharded(ctx: EntryContext, faulty: bool) -> nn.Module:
    """One batch of rank 1 has no label, the count is clamped, under FSDP2."""
    problem = _SumOverCount()
    model = sharded(problem.model())
    batches = _masked(batches_of(ctx, problem), lambda step: faulty and ctx.rank == 1 and step == TRIGGER)
    return fit(ctx, problem, model, batches=batches)


def _train(ctx: EntryContext, problem: CausalLM, masked: Any) -> nn.Module:
    return fit(ctx, problem, batches=_masked(batches_of(ctx, problem), masked))


def _masked(batches: Iterator[Any], masked: Any) -> Iterator[Any]:
    for step, batch in enumerate(batches):
        labels_BL = batch["labels"].clone()
        labels_BL[:, : 1 + step % (labels_BL.shape[1] - 2)] = IGNORED
        if masked(step):
            labels_BL[:] = IGNORED
        yield {**batch, "labels": labels_BL}


_fault = variants(
    "D6",
    ("worker-silent",),
    silent_loss,
    ranks=(1,),
    step=TRIGGER,
    family="labels that do not count",
    causes=("labels-all-masked",),
    variant_of="D6.zeros",
)

ENTRIES = (
    _fault(
        "",
        "one rank's labels all masked, mean loss",
        mean_of_nothing,
        must_find=("worker-nonfinite|worker-silent",),
        shows=nonfinite,
        may_find=("worker-nonfinite", "worker-silent"),
        variant_of="",
    ),
    _fault("zeros", "one rank's labels all masked once, clamped count", zeros_once),
    _fault("always", "one rank's labels always masked, clamped count", zeros_for_good, step=0),
    _fault(
        "by-hand",
        "labels of one rank of four all masked, hand-written all-reduce",
        zeros_by_hand,
        ranks=(2,),
        world_size=4,
    ),
    _fault("fsdp", "one rank's labels all masked once, FSDP2", zeros_sharded),
)
