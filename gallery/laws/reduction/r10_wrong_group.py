"""R10. Gradients are reduced over the wrong group: neighbours agree, the rest are left out.

Who had it: Megatron-LM#1628 and its family (#6080: expert gradients reduced over another group than they belong to);
a process group of a node taken for the one of the job. Every all-reduce is right, only not over everybody.
Planted: pairs instead of four ranks, in a DDP hook, in a hand-written loop, as DDP's own process group, for one
parameter only, and in FSDP2 by a mesh of the node.
Twin: all ranks.
"""

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

from gallery.entry import variants
from gallery.entry_context import EntryContext
from gallery.problems import CausalLM, Regression
from gallery.sharding import hybrid_mesh, sharded
from gallery.training import adamw, fit, mean_gradients, sgd, wrapped
from gallery.witness import replicas_differ

MISROUTED = "blocks.1.mlp.0.weight"


def in_hook(ctx: EntryContext, faulty: bool) -> nn.Module:
    """A DDP hook that was given the group of the node."""
    problem = CausalLM()
    model = wrapped(problem.model())
    _reduce_over(_pair_of(ctx) if faulty else dist.group.WORLD, model)
    return fit(ctx, problem, model)


def one_left_out(ctx: EntryContext, faulty: bool) -> nn.Module:
    """A DDP hook over the first three of four ranks; the last one reduces with itself."""
    problem = CausalLM()
    model = wrapped(problem.model())
    groups = [dist.new_group([0, 1, 2]), dist.new_group([3])]
    _reduce_over(groups[ctx.rank // 3] if faulty else dist.group.WORLD, model)
    return fit(ctx, problem, model)


def by_hand(ctx: EntryContext, faulty: bool) -> nn.Module:
    """A hand-written loop over the group of the node."""
    problem = Regression()
    model = problem.model()
    group = _pair_of(ctx) if faulty else None
    return fit(ctx, problem, model, after_backward=lambda step: mean_gradients(model.parameters(), group))


def one_parameter(ctx: EntryContext, faulty: bool) -> nn.Module:
    """A hand-written loop that takes one weight for an expert's."""
    problem = CausalLM()
    model = problem.model()
    pair = _pair_of(ctx)
    params = dict(model.named_parameters())
    expert = [params.pop(MISROUTED)] if faulty else []

    def reduce(step: int) -> None:
        mean_gradients(params.values())
        mean_gradients(expert, pair)

    return fit(ctx, problem, model, after_backward=reduce)


def ddp_group(ctx: EntryContext, faulty: bool) -> nn.Module:
    """`DDP(model, process_group=node)`, watched over all ranks."""
    problem = Regression()
    model = wrapped(problem.model(), process_group=_pair_of(ctx) if faulty else None)
    optimizer = sgd(model)
    watch = ctx.watch(model, optimizer, process_group=dist.group.WORLD)
    return fit(ctx, problem, model, optimizer=optimizer, watch=watch)


def mesh_of_node(ctx: EntryContext, faulty: bool) -> nn.Module:
    """HSDP whose mesh ends at the node: sharded over the pair, and no replica dimension."""
    problem = CausalLM()
    mesh = hybrid_mesh(ctx.world_size)
    model = sharded(problem.model(), mesh["shard"] if faulty else mesh)
    optimizer = adamw(model)
    watch = ctx.watch(model, optimizer, process_group=dist.group.WORLD)
    return fit(ctx, problem, model, optimizer=optimizer, watch=watch)


def _reduce_over(group: dist.ProcessGroup | None, model: nn.parallel.DistributedDataParallel) -> None:
    """Register a DDP hook of the user's own that averages over ``group``."""

    def reduce(state: object, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
        return allreduce_hook(group, bucket)

    model.register_comm_hook(None, reduce)


def _pair_of(ctx: EntryContext) -> dist.ProcessGroup:
    groups = [dist.new_group([first, first + 1]) for first in range(0, ctx.world_size, 2)]
    return groups[ctx.rank // 2]


ALSO = ("replica-drift", "gradient-not-reduced")

_fault = variants(
    "R10",
    ("reduction-mismatch",),
    replicas_differ,
    may_find=ALSO,
    ranks=(0, 1, 2, 3),
    world_size=4,
    family="process groups",
    causes=("wrong-group",),
)

ENTRIES = (
    _fault("", "DDP hook reduces over pairs", in_hook),
    _fault("by-hand", "hand-written all-reduce over pairs", by_hand, variant_of="R10"),
    _fault("left-out", "one rank of four left out of the group", one_left_out),
    _fault("one-parameter", "one parameter reduced over pairs", one_parameter, site=MISROUTED),
    _fault(
        "ddp-group",
        "DDP over pairs, watched over all",
        ddp_group,
        must_find=("reduction-mismatch|replica-drift",),
        may_find=(*ALSO, "reduction-mismatch"),
        within=1,
        variant_of="R10",
    ),
    _fault(
        "mesh",
        "FSDP2 mesh ends at the node, watched over all",
        mesh_of_node,
        must_find=("reduction-mismatch|replica-drift",),
        may_find=(*ALSO, "reduction-mismatch"),
        within=1,
        causes=("mesh-leaves-ranks-out",),
    ),
)
