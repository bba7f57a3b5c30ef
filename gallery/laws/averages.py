"""E1. The average of the weights (EMA, a momentum teacher) is another one: only what is evaluated with it shows it.

Who had it: hand-written loops that give the update another model, that swap the decay with
its complement, that go through one part of the model, or that average in the precision of the model.
Planted: these four; averages in lists that are updated at each micro-batch, that begin again at a restart, and that
stay in the model after an evaluation.
Twin: the same loop, right.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from gallery.entry import variants
from gallery.entry_context import EntryContext
from gallery.problems import CausalLM
from gallery.training import STEPS, adamw, batches_of, fit, fit_accumulating, usual_optimizer, wrapped
from gallery.witness import trains_differently

DECAY = 0.99


def follow(average: nn.Module, model: nn.Module, decay: float = DECAY) -> None:
    """What an exponential average does after each update."""
    with torch.no_grad():
        for e, p in zip(average.parameters(), model.parameters(), strict=True):
            e.mul_(decay).add_(p, alpha=1 - decay)


def averaged(
    ctx: EntryContext,
    update: Callable[[nn.Module, nn.Module], None],
    *,
    decay: float | None = None,
    dtype: torch.dtype = torch.float32,
    declares: bool = True,
) -> nn.Module:
    """A language model and its average, which ``update(average, model)`` follows; ``decay`` is declared, or not even
    the average.
    """
    problem = CausalLM()
    model = wrapped(problem.model())
    base = model.module
    average = copy.deepcopy(base).to(dtype)
    optimizer = usual_optimizer(problem, model)
    declared = [(average, base, *([] if decay is None else [decay]))] if declares else []
    watch = ctx.watch(model, optimizer, averages=declared)
    fit(ctx, problem, model, optimizer=optimizer, watch=watch, after_step=lambda step: update(average, base))
    return nn.ModuleDict({"model": base, "average": average})


def stale(ctx: EntryContext, faulty: bool) -> nn.Module:
    """The average follows a model of another initialisation, which is not trained."""
    other = CausalLM().model(seed=3)
    return averaged(ctx, lambda average, model: follow(average, other if faulty else model))


def swapped(ctx: EntryContext, faulty: bool) -> nn.Module:
    """The decay is given to the model's part."""
    return averaged(ctx, lambda average, model: follow(average, model, 1 - DECAY if faulty else DECAY), decay=DECAY)


def without_blocks(ctx: EntryContext, faulty: bool) -> nn.Module:
    """The loop goes through the embedding and the head, and not through the blocks."""

    def update(average: nn.Module, model: nn.Module) -> None:
        if not faulty:
            return follow(average, model)
        for (name, part), other in zip(average.named_children(), model.children(), strict=True):
            if name != "blocks":
                follow(part, other)
        return None

    return averaged(ctx, update)


def rounded(ctx: EntryContext, faulty: bool) -> nn.Module:
    """The average is kept in bfloat16."""
    dtype = torch.bfloat16 if faulty else torch.float32
    return averaged(ctx, follow, decay=DECAY, dtype=dtype)


def rounded_unseen(ctx: EntryContext, faulty: bool) -> nn.Module:
    """The same, where nobody says that there is an average."""
    return averaged(ctx, follow, dtype=torch.bfloat16 if faulty else torch.float32, declares=False)


def _listed(model: nn.Module) -> list[torch.Tensor]:
    return [param.detach().clone() for param in model.parameters()]


def _follow_list(average: list[torch.Tensor], model: nn.Module) -> None:
    with torch.no_grad():
        for e, p in zip(average, model.parameters(), strict=True):
            e.lerp_(p, 1 - DECAY)


def each_micro_batch(ctx: EntryContext, faulty: bool) -> nn.Module:
    """The average is updated in front of each backward pass, and not of the first of an update alone."""
    problem = CausalLM()
    model = wrapped(problem.model())
    average = _listed(model)

    def loss_of(called: nn.Module, batch: Any, micro: int) -> torch.Tensor:
        if faulty or micro == 0:
            _follow_list(average, model)
        return problem.loss(called, batch)

    fit_accumulating(ctx, problem, model, loss_of=loss_of)
    return nn.ParameterList([*model.parameters(), *(nn.Parameter(e) for e in average)])


def begins_again(ctx: EntryContext, faulty: bool) -> nn.Module:
    """The second start has the weights and the states of the first one, and another average."""
    problem = CausalLM()
    batches = batches_of(ctx, problem)

    def started(model: nn.Module, average: list[torch.Tensor], states: Any, step: int) -> Any:
        optimizer = adamw(model)
        if states is not None:
            optimizer.load_state_dict(states)
        watch = ctx.watch(model, optimizer, **({"goes_on_from": step} if step else {}))
        num = STEPS // 2
        after = lambda _: _follow_list(average, model)  # noqa: E731
        fit(ctx, problem, model, optimizer=optimizer, batches=batches, steps=num, watch=watch, after_step=after)
        return optimizer.state_dict()

    first = problem.model()
    average = _listed(first)
    states = started(first, average, None, 0)
    model = problem.model()
    model.load_state_dict(first.state_dict())
    later = _listed(model) if faulty else average
    del first, average
    started(model, later, states, STEPS // 2)
    return nn.ParameterList([*model.parameters(), *(nn.Parameter(e) for e in later)])


def left_in_model(ctx: EntryContext, faulty: bool) -> nn.Module:
    """An evaluation in the middle sets the weights to the average."""
    problem = CausalLM()
    model = wrapped(problem.model())
    average = _listed(model)

    def after(step: int) -> None:
        _follow_list(average, model)
        if step == STEPS // 2 - 1:
            weights = _listed(model)
            with torch.no_grad():
                for values in (average,) if faulty else (average, weights):
                    for param, value in zip(model.parameters(), values, strict=True):
                        param.copy_(value)

    return fit(ctx, problem, model, after_step=after)


_fault = variants(
    "E1", ("average-differs",), trains_differently, family="averages of weights", causes=("average-lost-in-rounding",)
)

ENTRIES = (
    _fault(
        "",
        "the average of the weights follows another model than the one that is trained",
        stale,
        causes=("average-of-other-weights",),
    ),
    _fault(
        "swapped",
        "decay and complement of the average of the weights are swapped",
        swapped,
        within=2,
        causes=("average-decay-wrong",),
    ),
    _fault(
        "part",
        "the average of the weights leaves out the blocks of the model",
        without_blocks,
        causes=("average-not-updated",),
    ),
    _fault("bf16", "the average of the weights is kept in bfloat16 and loses what it is to follow", rounded, within=4),
    _fault(
        "found",
        "an average in bfloat16 that is not declared loses what it is to follow",
        rounded_unseen,
        within=8,
        variant_of="E1.bf16",
    ),
    _fault(
        "micro",
        "an average of the weights is updated at each micro-batch",
        each_micro_batch,
        must_find=("average-updates",),
        within=2,
    ),
    _fault(
        "restart",
        "an average of the weights begins again where the job is started again",
        begins_again,
        must_find=("average-restarts",),
        step=STEPS // 2,
        ranks=(0,),
        world_size=1,
    ),
    _fault(
        "left",
        "an average of the weights stays in the model after an evaluation",
        left_in_model,
        must_find=("average-in-model",),
        may_find=("loss-spike", "grad-spike"),
        step=STEPS // 2 - 1,
    ),
)
