"""Healthy runs compared with a reference that computes the same in another way: rounding explains every difference."""

from __future__ import annotations

import copy
from itertools import islice

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

from gallery.comparison.s4_undivided_loss import accumulating
from gallery.entry import Control, Reference
from gallery.entry_context import EntryContext
from gallery.reference_training import STEPS, Unmasked, adamw, ddp, language_model, shares
from gallery.sharding import sharded
from gallery.training import fit

BEFORE = 2
"""Steps that nobody watches."""


def four_ranks(ctx: EntryContext) -> nn.Module:
    """DDP on four ranks, the same global batches."""
    return language_model(ctx, parallel=ddp)


def sharded_ranks(ctx: EntryContext) -> nn.Module:
    """FSDP2 on two ranks, the same global batches."""
    return language_model(ctx, parallel=lambda model: sharded(model, init_device_mesh("cpu", (ctx.world_size,))))


def cut_ranks(ctx: EntryContext) -> nn.Module:
    """The MLPs cut over two ranks, which see the same batches."""
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    def cut(model: nn.Module) -> nn.Module:
        mesh = init_device_mesh("cpu", (ctx.world_size,), mesh_dim_names=("tp",))
        for block in model.blocks:  # type: ignore[union-attr]
            parallelize_module(block.mlp, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
        return model

    return language_model(ctx, parallel=cut, share=False)


def two_threads(ctx: EntryContext) -> nn.Module:
    """Two threads in each operation."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        return language_model(ctx)
    finally:
        torch.set_num_threads(before)


def interrupted(ctx: EntryContext, *, resumes: bool = True) -> nn.Module:
    """Two steps unwatched; the rest watched, in a new model and optimizer that load the state if it ``resumes``."""
    problem = Unmasked()
    batches = shares(ctx, problem, steps=BEFORE + STEPS)
    model = problem.model()
    optimizer = adamw(model)
    fit(
        EntryContext(ctx.rank, ctx.world_size),
        problem,
        model,
        optimizer=optimizer,
        batches=islice(batches, BEFORE),
        steps=BEFORE,
    )
    if resumes:
        states = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
        model = problem.model(seed=9)
        optimizer = adamw(model)
        model.load_state_dict(states[0])
        optimizer.load_state_dict(states[1])
    return fit(ctx, problem, model, optimizer=optimizer, batches=batches, steps=STEPS, plan={"preset": "mix"})


ONE = Reference(language_model)

ENTRIES = (
    Control("healthy.beside-ddp", "DDP on 4 ranks beside one process", four_ranks, 4, ONE),
    Control("healthy.beside-fsdp", "FSDP2 on 2 ranks beside one process", sharded_ranks, 2, ONE),
    Control("healthy.beside-tp", "tensor parallelism on 2 ranks beside one process", cut_ranks, 2, ONE),
    Control("healthy.beside-ranks", "FSDP2 on 2 ranks beside DDP on 4", sharded_ranks, 2, Reference(four_ranks, 4)),
    Control("healthy.beside-threads", "two threads beside one", two_threads, 1, ONE),
    Control(
        "healthy.beside-accumulation",
        "two micro-batches beside one batch",
        lambda ctx: accumulating(ctx, False),
        1,
        ONE,
    ),
    Control(
        "healthy.beside-resumed",
        "a resumed run beside one that was not interrupted",
        interrupted,
        1,
        Reference(lambda ctx: interrupted(ctx, resumes=False)),
    ),
)
