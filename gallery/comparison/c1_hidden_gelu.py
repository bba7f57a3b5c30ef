"""C1. One layer's GELU is the tanh approximation, inside the kernel.

Who had it: ports to other hardware whose fused GELU is the approximation whatever was asked for; checkpoints of models
trained with `gelu_new` run with `gelu`. The call and its arguments are the same in both runs.
Planted: the second layer's kernel computes the approximation, on one process, on one of two ranks, or from step 2 on.
Twin: linears that add in another order, which rounding explains.
"""

from __future__ import annotations

import contextlib

from torch import nn

from gallery.changed_kernel import ChangedKernel
from gallery.entry import Reference
from gallery.entry_context import EntryContext
from gallery.families import KERNELS_AND_ARGUMENTS_OF_TWO_RUNS
from gallery.reference_training import compared, ddp, in_halves, keep, language_model

LATE = 2
ODD_RANK = 1
SITE = "/fwd/blocks.1.mlp.1.gelu#0:out0"


def one_process(ctx: EntryContext, faulty: bool, *, first: int = 0) -> nn.Module:
    """The kernel computes otherwise from its call number ``first`` on, of two a step."""
    if faulty:
        return language_model(ctx, inside=lambda: ChangedKernel("aten.gelu", first=first, approximate="tanh"))
    return language_model(ctx, change=in_halves)


def late(ctx: EntryContext, faulty: bool) -> nn.Module:
    """From step 2 on."""
    return one_process(ctx, faulty, first=2 * LATE)


def one_rank(ctx: EntryContext, faulty: bool) -> nn.Module:
    """Rank 1 of two has another kernel."""
    if faulty and ctx.rank == ODD_RANK:
        return language_model(ctx, parallel=ddp, inside=lambda: ChangedKernel("aten.gelu", approximate="tanh"))
    return language_model(ctx, parallel=ddp, change=keep if faulty else in_halves, inside=contextlib.nullcontext)


_fault = compared(
    "C1",
    ("first-divergence",),
    site=SITE,
    family=KERNELS_AND_ARGUMENTS_OF_TWO_RUNS,
    causes=("kernel-differs",),
    variant_of="C1",
)

ENTRIES = (
    _fault("", "tanh GELU hidden in one layer's kernel", one_process),
    _fault("late", "tanh GELU hidden in one layer's kernel from step 2 on", late, step=LATE),
    _fault(
        "one-rank",
        "tanh GELU hidden in one layer's kernel on rank 1",
        one_rank,
        ranks=(ODD_RANK,),
        world_size=2,
        reference=Reference(lambda ctx: language_model(ctx, parallel=ddp), 2),
    ),
)
