"""R1. The forward pass goes round the wrapper, so the wrapper never reduces the gradients.

Who had it: kohya-ss/sd-scripts#924 (the model was unwrapped before the loop), and every `model.module(...)` in a
training step. The reducer only listens when DDP.forward armed it: each rank trains alone, on its own shard, and
nothing warns.
Planted: `ddp.module(batch)` from the start; from step 6 on, after an "evaluation" unwrapped the model; all
micro-steps under `no_sync`; a hand-written loop that leaves one parameter out of its all-reduce, or skips the
reduction at one step.
Twin: the forward through the wrapper, the last micro-step outside `no_sync`, every parameter reduced.
"""

from __future__ import annotations

from torch import nn

from gallery.entry import variants
from gallery.entry_context import EntryContext
from gallery.families import REDUCTIONS_LEFT_OUT, WRAPPERS_THAT_ARE_BYPASSED
from gallery.problems import CausalLM, Regression
from gallery.training import fit, fit_accumulating, mean_gradients, wrapped
from gallery.witness import replicas_differ

TRIGGER = 6


def raw_module(ctx: EntryContext, faulty: bool) -> nn.Module:
    """`model.module(batch)` instead of `model(batch)`."""
    problem = CausalLM()
    model = wrapped(problem.model())
    return fit(ctx, problem, model, forward=model.module if faulty else None)


def unwrapped_later(ctx: EntryContext, faulty: bool) -> nn.Module:
    """`model = model.module` for an evaluation, and training goes on with it."""
    problem = Regression()
    model = wrapped(problem.model())
    steps = iter(range(1000))

    def loss_of(called: nn.Module, batch: object) -> object:
        return problem.loss(model.module if faulty and next(steps) >= TRIGGER else called, batch)

    return fit(ctx, problem, model, loss_of=loss_of)


def never_synced(ctx: EntryContext, faulty: bool) -> nn.Module:
    """Every micro-step runs under `no_sync`."""
    return fit_accumulating(ctx, CausalLM(), syncs=lambda step, micro: micro == 1 and not faulty)


def parameter_left_out(ctx: EntryContext, faulty: bool) -> nn.Module:
    """A hand-written all-reduce over the parameters that filters one too many."""
    problem = CausalLM()
    model = problem.model()
    reduced = [param for name, param in model.named_parameters() if not (faulty and name == "blocks.1.mlp.0.weight")]
    return fit(ctx, problem, model, after_backward=lambda step: mean_gradients(reduced))


def step_left_out(ctx: EntryContext, faulty: bool) -> nn.Module:
    """A hand-written all-reduce that is skipped at one step on all ranks."""
    problem = Regression()
    model = problem.model()

    def reduce(step: int) -> None:
        if not (faulty and step == TRIGGER):
            mean_gradients(model.parameters())

    return fit(ctx, problem, model, after_backward=reduce)


def never_reduced(ctx: EntryContext, faulty: bool) -> nn.Module:
    """A hand-written loop that forgot its all-reduce."""
    problem = Regression()
    model = problem.model()
    reduced = [] if faulty else list(model.parameters())
    return fit(ctx, problem, model, after_backward=lambda step: mean_gradients(reduced))


_fault = variants(
    "R1",
    ("gradient-not-reduced", "replica-drift"),
    replicas_differ,
    may_find=("reduction-mismatch",),
    ranks=(0, 1),
    family=REDUCTIONS_LEFT_OUT,
    causes=("wrapper-bypassed",),
)

ENTRIES = (
    _fault("", "forward through the raw module", raw_module, family=WRAPPERS_THAT_ARE_BYPASSED),
    _fault(
        "later",
        "unwrapped for an evaluation and not wrapped again",
        unwrapped_later,
        step=TRIGGER,
        family=WRAPPERS_THAT_ARE_BYPASSED,
    ),
    _fault("no-sync", "every micro-step under no_sync", never_synced, causes=("no-sync-at-update",)),
    _fault(
        "one-parameter",
        "one parameter left out of a hand-written all-reduce",
        parameter_left_out,
        site="blocks.1.mlp.0.weight",
        causes=("parameter-left-out",),
    ),
    _fault(
        "one-step",
        "hand-written all-reduce skipped at one step",
        step_left_out,
        step=TRIGGER,
        causes=("no-all-reduce",),
        variant_of="R1.never",
    ),
    _fault("never", "hand-written loop without all-reduce", never_reduced, causes=("no-all-reduce",)),
)
