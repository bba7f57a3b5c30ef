"""R4. The ranks hold different weights: they started apart, or one was changed behind the others' backs.

Who had it: torchtitan#166 and OLMo-core#319 (weights drawn under a seed per rank, and a wrapper that does not
broadcast); resuming from a checkpoint that one rank could not read; a flipped bit in memory. The gradients are
averaged faithfully, so every signal but the weights themselves looks healthy.
Planted: different seeds with a hand-written all-reduce, with `DDP(init_sync=False)`, and between the replicas of
HSDP; one rank that loads an older checkpoint; one weight of one rank changed by a bit at step 6.
Twin: equal seeds, equal checkpoints, no flip.
"""

from __future__ import annotations

import copy

import torch
from torch import nn

from gallery.entry import variants
from gallery.entry_context import EntryContext
from gallery.families import CORRUPTED_MEMORY, WHERE_RANKS_START
from gallery.problems import CausalLM, Regression
from gallery.sharding import hybrid_mesh, sharded
from gallery.training import fit, mean_each_gradient, mean_gradients, wrapped
from gallery.witness import replicas_differ

TRIGGER = 6


def by_hand(ctx: EntryContext, faulty: bool) -> nn.Module:
    """A seed per rank, and no broadcast before the loop."""
    problem = Regression()
    model = problem.model(seed=ctx.rank * faulty)
    return fit(ctx, problem, model, after_backward=lambda step: mean_each_gradient(model.parameters()))


def no_broadcast(ctx: EntryContext, faulty: bool) -> nn.Module:
    """`DDP(init_sync=False)` to save the broadcast at start."""
    problem = CausalLM()
    model = wrapped(problem.model(seed=ctx.rank * faulty), init_sync=False)
    return fit(ctx, problem, model)


def hybrid(ctx: EntryContext, faulty: bool) -> nn.Module:
    """HSDP whose replicas drew their weights under different seeds."""
    problem = CausalLM()
    replica = ctx.rank // (ctx.world_size // 2)
    model = sharded(problem.model(seed=replica * faulty), hybrid_mesh(ctx.world_size))
    return fit(ctx, problem, model)


def older_checkpoint(ctx: EntryContext, faulty: bool) -> nn.Module:
    """Rank 1 found only an older checkpoint: loaded after wrapping, so nothing broadcasts it."""
    problem = Regression()
    model = wrapped(problem.model())
    older = copy.deepcopy(model.module.state_dict())
    newer = {name: value + 0.01 for name, value in older.items()}
    model.module.load_state_dict(older if faulty and ctx.rank == 1 else newer)
    return fit(ctx, problem, model)


def frozen_apart(ctx: EntryContext, faulty: bool) -> nn.Module:
    """A frozen embedding that each rank drew by itself, under a hand-written all-reduce of what trains."""
    problem = CausalLM()
    model = problem.model()
    model.embed.weight = nn.Parameter(problem.model(seed=1 + ctx.rank * faulty).embed.weight, requires_grad=False)
    return fit(ctx, problem, model, after_backward=lambda step: mean_gradients(model.parameters()))


def bit_flip(ctx: EntryContext, faulty: bool) -> nn.Module:
    """Mantissa bit 12 of one weight of rank 1 flips between two steps."""
    problem = CausalLM()
    model = wrapped(problem.model())

    def flip(step: int) -> None:
        if faulty and ctx.rank == 1 and step == TRIGGER - 1:
            bits = model.module.blocks[0].qkv.weight.detach().view(torch.int32)
            bits[3, 5] ^= 1 << 12

    return fit(ctx, problem, model, after_step=flip)


def bit_flip_four(ctx: EntryContext, faulty: bool) -> nn.Module:
    """The lowest mantissa bit of one weight of rank 2 of four flips."""
    problem = Regression()
    model = wrapped(problem.model())

    def flip(step: int) -> None:
        if faulty and ctx.rank == 2 and step == TRIGGER - 1:
            bits = model.module[2].weight.detach().view(torch.int32)
            bits[0, 0] ^= 1

    return fit(ctx, problem, model, after_step=flip)


_fault = variants(
    "R4", ("replica-drift",), replicas_differ, ranks=(0, 1), family=WHERE_RANKS_START, causes=("starts-differ",)
)

ENTRIES = (
    _fault("", "different initial weights, hand-written all-reduce", by_hand),
    _fault("init-sync", "different initial weights, DDP without broadcast", no_broadcast, variant_of="R4"),
    _fault(
        "hybrid",
        "different initial weights between HSDP replicas",
        hybrid,
        ranks=(0, 1, 2, 3),
        world_size=4,
        variant_of="R4",
    ),
    _fault("checkpoint", "one rank resumed from an older checkpoint", older_checkpoint),
    _fault("frozen", "a frozen parameter differs between ranks", frozen_apart, site="embed.weight"),
    _fault(
        "bit-flip",
        "a bit of one weight flips on one rank",
        bit_flip,
        step=TRIGGER,
        site="blocks.0.qkv.weight",
        family=CORRUPTED_MEMORY,
        causes=("memory-corrupted",),
    ),
    _fault(
        "last-bit",
        "the last bit of one weight flips on one rank of four",
        bit_flip_four,
        ranks=(2,),
        step=TRIGGER,
        site="2.weight",
        world_size=4,
        family=CORRUPTED_MEMORY,
        causes=("memory-corrupted",),
        variant_of="R4.bit-flip",
    ),
)
