"""Q1. Something other than the update changes the weights of each rank in its own way.

Who had it: initialisation applied after wrapping, weights averaged for an evaluation on rank 0 and not put back, noise
and pruning masks drawn with a generator of each rank, a backward pass for a plot on rank 0, ReduceLROnPlateau fed with
the loss of each rank.
Planted: each of these on DDP.
Twin: the same, with one generator, an averaged loss, or gradients that are returned and not added.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn
from torch.optim.lr_scheduler import ReduceLROnPlateau
from torch.utils.data import default_collate

from gallery.entry import variants
from gallery.entry_context import EntryContext
from gallery.families import COPIES_OF_WEIGHTS, GRADIENTS_OF_ONE_RANK, SCHEDULES, WHERE_RANKS_START
from gallery.problems import Regression
from gallery.training import fit, sgd, wrapped
from gallery.witness import replicas_differ

TRIGGER = 6


def drawn_after(ctx: EntryContext, faulty: bool) -> nn.Module:
    """``apply`` of an initialisation after DDP has broadcast."""
    model = wrapped(Regression().model())
    draw = torch.Generator().manual_seed(ctx.rank if faulty else 0)
    with torch.no_grad():
        for param in model.parameters():
            param.normal_(0, 0.1, generator=draw)
    return fit(ctx, Regression(), model)


def left_averaged(ctx: EntryContext, faulty: bool) -> nn.Module:
    """Rank 0 evaluates averaged weights, and goes on with them."""
    model = wrapped(Regression().model())
    averaged = [param.detach().clone() for param in model.parameters()]

    def average(step: int) -> None:
        with torch.no_grad():
            for mean, param in zip(averaged, model.parameters(), strict=True):
                mean.lerp_(param, 0.1)
                if faulty and ctx.rank == 0 and step == TRIGGER - 1:
                    param.copy_(mean)

    return fit(ctx, Regression(), model, after_step=average)


def noisy_weights(ctx: EntryContext, faulty: bool) -> nn.Module:
    """Noise on the weights after an update, from a generator of each rank."""
    model = wrapped(Regression().model())
    draw = torch.Generator().manual_seed(ctx.rank if faulty else 0)

    def disturb(step: int) -> None:
        with torch.no_grad():
            for param in model.parameters() if step == TRIGGER - 1 else ():
                param += 1e-3 * torch.randn(param.shape, generator=draw)

    return fit(ctx, Regression(), model, after_step=disturb)


def noisy_gradients(ctx: EntryContext, faulty: bool) -> nn.Module:
    """Noise on reduced gradients, from a generator of each rank."""
    model = wrapped(Regression().model())
    draw = torch.Generator().manual_seed(ctx.rank)

    def disturb(step: int) -> None:
        for param in model.parameters() if faulty else ():
            param.grad += 1e-2 * torch.randn(param.shape, generator=draw)

    return fit(ctx, Regression(), model, after_backward=disturb)


def probed_gradients(ctx: EntryContext, faulty: bool) -> nn.Module:
    """At every second step rank 0 looks at gradients of a batch of its own, by backward into ``.grad``."""
    problem = Regression()
    model = wrapped(problem.model())
    batch = default_collate(list(problem.dataset(16, seed=5)))

    def probe(step: int) -> None:
        if ctx.rank == 0 and step % 2 == 0:
            loss = problem.loss(model.module, batch)
            if faulty:
                loss.backward()
            else:
                torch.autograd.grad(loss, list(model.parameters()))

    return fit(ctx, problem, model, after_backward=probe)


def own_plateau(ctx: EntryContext, faulty: bool) -> nn.Module:
    """A plateau of the loss of each rank lowers its learning rate."""
    model = wrapped(Regression().model())
    optimizer = sgd(model)
    scheduler = ReduceLROnPlateau(optimizer, factor=0.5, patience=0)

    def advance(step: int) -> None:
        loss = torch.tensor(ctx.losses[-1])
        if not faulty:
            dist.all_reduce(loss)
        scheduler.step(loss.item())

    return fit(ctx, Regression(), model, optimizer=optimizer, after_step=advance)


_fault = variants(
    "Q1",
    ("replica-drift",),
    replicas_differ,
    ranks=(0, 1),
    family=COPIES_OF_WEIGHTS,
    causes=("weights-replaced-on-rank",),
)

ENTRIES = (
    _fault(
        "",
        "weights are initialised after DDP has broadcast",
        drawn_after,
        family=WHERE_RANKS_START,
        causes=("starts-differ",),
    ),
    _fault("averaged", "averaged weights of an evaluation stay on rank 0", left_averaged, step=TRIGGER),
    _fault("noise", "noise is added to weights with a seed of each rank", noisy_weights, step=TRIGGER),
    _fault(
        "gradient-noise",
        "noise is added to reduced gradients with a seed of each rank",
        noisy_gradients,
        must_find=("reduction-mismatch",),
        may_find=("replica-drift", "gradient-not-reduced"),
        family=GRADIENTS_OF_ONE_RANK,
        causes=("gradient-noise-on-rank",),
    ),
    _fault(
        "probe",
        "a probe of rank 0 adds to its reduced gradients",
        probed_gradients,
        must_find=("reduction-mismatch",),
        may_find=("replica-drift", "worker-grad-norm-outlier", "worker-direction-outlier"),
        ranks=(0,),
        family=GRADIENTS_OF_ONE_RANK,
        causes=("backward-on-some-ranks",),
    ),
    _fault(
        "plateau",
        "a plateau of each rank's own loss lowers its learning rate",
        own_plateau,
        must_find=("rank-config-differs",),
        may_find=("replica-drift",),
        within=None,
        family=SCHEDULES,
        causes=("optimizer-settings-differ",),
    ),
)
