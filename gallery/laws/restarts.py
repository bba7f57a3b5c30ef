"""H2. A job is started again, and takes over other weights or states than it had left.

Who had it: checkpoints of compiled or wrapped models whose names have a prefix and that are loaded with strict=False;
optimizers whose parameters come from a set, or in other groups, so that each is given the states of another; schedules
that are made after the optimizer was loaded, and write their first rate into it; normalisers of inputs that nobody
saves.
Planted: a second start whose weights are not loaded; one whose optimizer has two layers in the other order; one whose
learning rate is the first one again; one whose batch normalisation has seen nothing. Twin: everything is loaded.
"""

from __future__ import annotations

from collections import OrderedDict

from torch import nn

from gallery.entry import variants
from gallery.entry_context import EntryContext
from gallery.families import RESTARTS
from gallery.problems import Regression
from gallery.training import STEPS, adamw, batches_of, fit
from gallery.witness import keeps_differently, trains_differently

AGAIN = STEPS // 2


def _model() -> nn.Module:
    """The problem's model with two more layers, of one shape, and batch normalisation in front of them."""
    layers = Regression().model()
    first = next(module for module in layers.modules() if isinstance(module, nn.Linear))
    width = first.in_features
    parts: list[tuple[str, nn.Module]] = []
    for number in (1, 2):
        parts += [(f"layer{number}", nn.Linear(width, width)), (f"activation{number}", nn.Tanh())]
    return nn.Sequential(OrderedDict([("norm", nn.BatchNorm1d(width)), *parts, ("rest", layers)]))


def _restarted(
    ctx: EntryContext,
    *,
    loads_weights: bool = True,
    loads_buffers: bool = True,
    in_order: bool = True,
    rate: float | None = None,
) -> nn.Module:
    problem = Regression()
    batches = batches_of(ctx, problem)
    model = _model()
    begins = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    optimizer = adamw(model)
    fit(ctx, problem, model, optimizer=optimizer, batches=batches, steps=AGAIN)
    later = _model()
    later.load_state_dict(model.state_dict() if loads_weights else begins)
    if not loads_buffers:
        later.load_state_dict({name: begins[name] for name, _ in model.named_buffers()}, strict=False)
    later_optimizer = adamw(later)
    if not in_order:
        params = later_optimizer.param_groups[0]["params"]
        params[2], params[4] = params[4], params[2]
    later_optimizer.load_state_dict(optimizer.state_dict())
    for group in later_optimizer.param_groups:
        group["lr"] = rate or group["lr"]
    watch = ctx.watch(later, later_optimizer, goes_on_from=AGAIN)
    return fit(ctx, problem, later, optimizer=later_optimizer, batches=batches, steps=STEPS - AGAIN, watch=watch)


def not_loaded(ctx: EntryContext, faulty: bool) -> nn.Module:
    """The weights are those of the beginning."""
    return _restarted(ctx, loads_weights=not faulty)


def other_order(ctx: EntryContext, faulty: bool) -> nn.Module:
    """The optimizer has the weights of two layers in the other order."""
    return _restarted(ctx, in_order=not faulty)


def first_rate(ctx: EntryContext, faulty: bool) -> nn.Module:
    """The learning rate is four times what it was."""
    return _restarted(ctx, rate=0.012 if faulty else None)


def no_buffers(ctx: EntryContext, faulty: bool) -> nn.Module:
    """Batch normalisation has the running statistics of the beginning."""
    return _restarted(ctx, loads_buffers=not faulty)


_fault = variants("H2", (), trains_differently, ranks=(0,), world_size=1, step=AGAIN, family=RESTARTS)

ENTRIES = (
    _fault(
        "",
        "the weights are not loaded where the job is started again",
        not_loaded,
        must_find=("restart-weights",),
        may_find=("loss-spike", "grad-spike"),
        causes=("weights-not-restored",),
    ),
    _fault(
        "states",
        "the optimizer's states are loaded to other parameters",
        other_order,
        must_find=("restart-states",),
        causes=("states-out-of-order",),
    ),
    _fault(
        "rate",
        "the learning rate is another where the job is started again",
        first_rate,
        must_find=("restart-rate",),
    ),
    _fault(
        "statistics",
        "running statistics are not loaded where the job is started again",
        no_buffers,
        must_find=("restart-statistics",),
        shows=keeps_differently,
        causes=("statistics-not-saved",),
    ),
)
