"""A1. Micro-batches are accumulated in another way than the script means.

Who had it: loops that clear gradients in front of each micro-batch, or clip after each (transformers#1563), that divide
gradients, which hold the sum, or unscale them after each (torch's page on automatic mixed precision warns of it), carry
what is left of an epoch into the next, divide the last, shorter accumulation by the usual number, or take sums, padding
and rows for the mean over tokens (the family of transformers#34191).
Planted: each of these.
Twin: cleared, divided, unscaled and clipped once an update; the mean over the tokens that count.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from torch import Tensor, nn
from torch.amp import GradScaler
from torch.nn import functional
from torch.utils.data import DataLoader

from gallery.entry import variants
from gallery.entry_context import EntryContext
from gallery.families import CLIPPING, DIVISORS, GRADIENT_SCALERS, GRADIENTS_THAT_ARE_KEPT, WEIGHTS_OF_TOKENS
from gallery.problems import IGNORED, CausalLM, Regression
from gallery.training import adamw, batches_of, fit, fit_accumulating, sgd, wrapped
from gallery.witness import trains_differently

TRIGGER = 6
NUM_MICRO = 4


def cleared(ctx: EntryContext, faulty: bool) -> nn.Module:
    """``zero_grad`` inside the loop over micro-batches."""
    problem = CausalLM()
    model = wrapped(problem.model())

    def loss_of(called: nn.Module, batch: Any, micro: int) -> Tensor:
        if faulty:
            model.zero_grad()
        return problem.loss(called, batch)

    return fit_accumulating(ctx, problem, model, optimizer=adamw(model), num_micro=NUM_MICRO, loss_of=loss_of)


def clipped_each(ctx: EntryContext, faulty: bool) -> nn.Module:
    """Gradients are clipped after each micro-batch."""
    problem = CausalLM()
    model = wrapped(problem.model())

    def clip(step: int = 0) -> None:
        nn.utils.clip_grad_norm_(model.parameters(), 0.05)

    def loss_of(called: nn.Module, batch: Any, micro: int) -> Tensor:
        if faulty and micro:
            clip()
        return problem.loss(called, batch)

    return fit_accumulating(ctx, problem, model, num_micro=NUM_MICRO, loss_of=loss_of, after_backward=clip)


def divided_each(ctx: EntryContext, faulty: bool) -> nn.Module:
    """Gradients are divided after each micro-batch, and with them the sum of the earlier ones."""
    problem = CausalLM()
    model = wrapped(problem.model())

    def divide(step: int = 0) -> None:
        for param in model.parameters():
            param.grad.div_(NUM_MICRO)

    def loss_of(called: nn.Module, batch: Any, micro: int) -> Tensor:
        if faulty and micro:
            divide()
        return problem.loss(called, batch) * NUM_MICRO

    return fit_accumulating(ctx, problem, model, num_micro=NUM_MICRO, loss_of=loss_of, after_backward=divide)


def unscaled_each(ctx: EntryContext, faulty: bool) -> nn.Module:
    """The scaler divides after the first micro-batch, and adds gradients that it scales to that."""
    problem = CausalLM()
    model = wrapped(problem.model())
    optimizer = sgd(model)
    scaler = GradScaler("cpu", init_scale=16.0, growth_interval=1000)

    def loss_of(called: nn.Module, batch: Any, micro: int) -> Tensor:
        if faulty and micro == 1:
            scaler.unscale_(optimizer)
        return scaler.scale(problem.loss(called, batch))

    def unscale(step: int) -> None:
        if not faulty:
            scaler.unscale_(optimizer)
        scaler.update()

    return fit_accumulating(
        ctx, problem, model, optimizer=optimizer, num_micro=NUM_MICRO, loss_of=loss_of, after_backward=unscale
    )


def left_over(ctx: EntryContext, faulty: bool) -> nn.Module:
    """A micro-batch at the end of an epoch has no update, and its gradient stays."""
    problem = Regression()
    model = problem.model()
    rest = problem.dataset(4, seed=3)[slice(None)]

    def leave(step: int) -> None:
        if step == TRIGGER - 1:
            problem.loss(model, rest).backward()
            if not faulty:
                model.zero_grad()

    return fit(ctx, problem, model, after_step=leave)


def epoch_end(ctx: EntryContext, faulty: bool) -> nn.Module:
    """Of the seven micro-batches of an epoch the last one is too few for an update of three."""
    problem = Regression()
    model = problem.model()
    optimizer, loader = sgd(model), DataLoader(problem.dataset(28, seed=3), batch_size=4)
    watch = ctx.watch(model, optimizer)
    for _ in range(4):
        for micro, batch in enumerate(loader):
            with watch.step(batch):
                loss = problem.loss(model, batch)
                watch.loss(loss.detach(), problem.tokens(batch))
                (loss / 3).backward()
                if micro % 3 == 2:
                    optimizer.step()
                    optimizer.zero_grad()
            ctx.note([batch], loss.item())
        if not faulty:
            optimizer.zero_grad()
    watch.close()
    return model


def divided_as_usual(ctx: EntryContext, faulty: bool) -> nn.Module:
    """Two micro-batches are left for the last update of an epoch, and are divided by four."""
    problem = CausalLM()
    steps = iter(range(1000))

    def loss_of(called: nn.Module, batch: Any, micro: int) -> Tensor:
        short = next(steps) // 2 >= TRIGGER
        return problem.loss(called, batch) * (0.5 if faulty and short else 1.0)

    return fit_accumulating(ctx, problem, num_micro=2, loss_of=loss_of)


def mean_over(ctx: EntryContext, faulty: bool, *, what: str) -> nn.Module:
    """One process; the labels of each row end somewhere else."""
    problem = CausalLM()

    def loss_of(model: nn.Module, batch: Any) -> Tensor:
        logits_BLV, labels_BL = model(batch["input_ids"])[:, :-1], batch["labels"][:, 1:]
        losses_BL = functional.cross_entropy(logits_BLV.mT, labels_BL, reduction="none")
        counts_B = (labels_BL != IGNORED).sum(1)
        if not faulty:
            return losses_BL.sum() / counts_B.sum()
        if what == "rows":
            return (losses_BL.sum(1) / counts_B).mean()
        return losses_BL.mean() if what == "padding" else losses_BL.sum() / len(losses_BL)

    return fit(ctx, problem, problem.model(), batches=_masked(batches_of(ctx, problem)), loss_of=loss_of)


def _masked(batches: Iterator[Any]) -> Iterator[Any]:
    for batch in batches:
        labels_BL = batch["labels"].clone()
        for row, count in enumerate((3, 15, 6, 9)):
            labels_BL[row, count + 1 :] = IGNORED
        yield {**batch, "labels": labels_BL}


_scale = variants(
    "A1",
    ("loss-scale-wrong",),
    trains_differently,
    ranks=(0,),
    world_size=1,
    family=GRADIENTS_THAT_ARE_KEPT,
    causes=("gradients-changed-between",),
)

ENTRIES = (
    _scale(
        "",
        "gradients are cleared in front of each micro-batch",
        cleared,
        must_find=("token-weights-differ|loss-scale-wrong",),
        may_find=("loss-scale-wrong", "token-weights-differ", "gradient-not-reduced"),
        world_size=2,
        ranks=(0, 1),
        causes=("gradients-cleared-early",),
    ),
    _scale(
        "clipped",
        "gradients are clipped after each micro-batch",
        clipped_each,
        must_find=("clip-differs",),
        family=CLIPPING,
        causes=("clipped-at-another-time",),
    ),
    _scale("divided", "gradients are divided after each micro-batch", divided_each, must_find=("grad-accumulates",)),
    _scale(
        "unscaled",
        "gradients are unscaled after the first micro-batch",
        unscaled_each,
        must_find=("grad-accumulates",),
        may_find=("loss-scale-wrong", "grad-explosion", "loss-spike", "grad-spike", "worker-nonfinite"),
        family=GRADIENT_SCALERS,
    ),
    _scale(
        "left-over",
        "what is left of an epoch stays in the gradients",
        left_over,
        must_find=("grad-accumulates",),
        step=TRIGGER,
        within=1,
        causes=("gradients-not-cleared",),
    ),
    _scale(
        "epoch-end",
        "an epoch ends between two updates",
        epoch_end,
        must_find=("grad-accumulates",),
        step=2,
        causes=("gradients-not-cleared",),
        variant_of="A1.left-over",
    ),
    _scale(
        "short",
        "a shorter accumulation is divided by the usual number",
        divided_as_usual,
        world_size=2,
        ranks=(0, 1),
        step=TRIGGER,
        family=DIVISORS,
        causes=("loss-divided-twice",),
    ),
    _scale(
        "sum",
        "the loss is summed over tokens and divided by rows",
        partial(mean_over, what="sum"),
        family=DIVISORS,
        causes=("loss-not-divided", "loss-scaled"),
    ),
    _scale(
        "padding",
        "the mean is over padding too",
        partial(mean_over, what="padding"),
        family=WEIGHTS_OF_TOKENS,
        causes=("loss-scaled",),
    ),
    _scale(
        "rows",
        "means of rows are averaged",
        partial(mean_over, what="rows"),
        must_find=("token-weights-differ",),
        may_find=("loss-scale-wrong",),
        family=WEIGHTS_OF_TOKENS,
        causes=("tokens-weighted-unequally",),
    ),
)
