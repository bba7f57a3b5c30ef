"""R7. Gradients that were gathered under `no_sync` are not reduced when the step is taken.

Who had it: P#69031 (parameters that only earlier micro-steps used were never synchronised; mended in newer versions
of torch), composer#9; home-made overlap that reduces from gradient hooks has it still. Also: a step at the end of an
epoch while the accumulation is not complete, and a forward pass inside `no_sync` with its backward outside.
Planted: reduction from post-accumulate hooks in the last micro-step, where a branch is unused; an odd number of
batches with a step at the end; backward outside the context.
Twin: the branch is used in the last micro-step, the last step reduces, forward and backward share the context.
"""

from __future__ import annotations

import contextlib
from itertools import islice

import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional

from gallery.entry import variants
from gallery.entry_context import EntryContext
from gallery.families import REDUCTIONS_LEFT_OUT, WRAPPERS_THAT_ARE_BYPASSED
from gallery.problems import CausalLM, Regression
from gallery.training import STEPS, adamw, batches_of, fit_accumulating, sgd, wrapped
from gallery.witness import replicas_differ

TRIGGER = 5


class Branched(nn.Module):
    """A trunk and a branch that a forward pass may leave out."""

    def __init__(self) -> None:
        super().__init__()
        base = Regression().model()
        self.trunk, self.head = base[:4], base[4]
        self.branch = nn.Linear(16, 16)
        nn.init.constant_(self.branch.weight, 0.02)

    def forward(self, x_BD: Tensor, with_branch: bool) -> Tensor:
        """The output, with or without what the branch adds."""
        hidden_BD = self.trunk(x_BD)
        return self.head(hidden_BD + self.branch(hidden_BD) if with_branch else hidden_BD)


def reduced_from_hooks(ctx: EntryContext, faulty: bool) -> nn.Module:
    """Home-made overlap: each gradient is reduced when the last micro-step has made it, so an unused one never is."""
    problem = Regression()
    model, reducing = Branched(), [False]

    def reduce(param: nn.Parameter) -> None:
        if reducing[0]:
            dist.all_reduce(param.grad)
            param.grad.div_(ctx.world_size)

    for param in model.parameters():
        param.register_post_accumulate_grad_hook(reduce)
    optimizer = sgd(model)
    watch, batches = ctx.watch(model, optimizer), batches_of(ctx, problem)
    for _ in range(STEPS):
        micros = [next(batches), next(batches)]
        with watch.step(micros):
            losses = []
            for micro, batch in enumerate(micros):
                reducing[0] = micro == 1
                loss = functional.mse_loss(model(batch["x"], micro == (0 if faulty else 1)), batch["y"])
                watch.loss(loss.detach(), problem.tokens(batch))
                (loss / 2).backward()
                losses.append(loss.item())
            optimizer.step()
            optimizer.zero_grad()
        ctx.note(micros, sum(losses) / 2)
    watch.close()
    return model


def step_at_the_end(ctx: EntryContext, faulty: bool) -> nn.Module:
    """A step is taken at the end of an epoch, in the middle of an accumulation."""

    def syncs(step: int, micro: int) -> bool:
        return micro == 1 and not (faulty and step % (TRIGGER + 1) == TRIGGER)

    return fit_accumulating(ctx, CausalLM(), syncs=syncs)


def backward_outside(ctx: EntryContext, faulty: bool) -> nn.Module:
    """`with no_sync(): loss = model(batch)` and `loss.backward()` after it; DDP decides in the forward pass."""
    problem = CausalLM()
    model = wrapped(problem.model())
    optimizer = adamw(model)
    watch = ctx.watch(model, optimizer)
    for batch in islice(batches_of(ctx, problem), STEPS):
        with watch.step(batch):
            with model.no_sync() if faulty else contextlib.nullcontext():
                loss = problem.loss(model, batch)
            watch.loss(loss.detach(), problem.tokens(batch))
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        ctx.note([batch], loss.item())
    watch.close()
    return model


_fault = variants(
    "R7",
    ("gradient-not-reduced",),
    replicas_differ,
    may_find=("replica-drift", "reduction-mismatch"),
    ranks=(0, 1),
    family=REDUCTIONS_LEFT_OUT,
    causes=("no-sync-at-update", "parameter-left-out"),
)

ENTRIES = (
    _fault("", "branch unused in the last micro-step", reduced_from_hooks, site="branch"),
    _fault("epoch-end", "step taken while under no_sync", step_at_the_end, step=TRIGGER),
    _fault(
        "backward-outside",
        "forward under no_sync, backward outside",
        backward_outside,
        family=WRAPPERS_THAT_ARE_BYPASSED,
    ),
)
