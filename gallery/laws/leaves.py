"""Y1. Layers that nothing registers. Y2. Weights that were cast once.

Who had it: layers in a Python list, a loss with weights of its own that no optimizer is given, layers that are made in
`forward` (threads on models that do not learn, of all years); one autocast context around an epoch, whose cache keeps
the first casts of weights.
Planted: these.
Twin: `nn.ModuleList`; the weights are given to the optimizer; a context for each forward pass.
"""

from __future__ import annotations

import contextlib
from typing import Any

import torch
from torch import Tensor, nn

from gallery.entry import Fault, variants
from gallery.entry_context import EntryContext
from gallery.families import PARAMETERS_OF_OPTIMIZERS
from gallery.problems import Regression
from gallery.training import batches_of, fit, wrapped
from gallery.witness import trains_differently


class _Residual(nn.Module):
    """Layers between a first and a last one, registered or not."""

    def __init__(self, *, registers: bool) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(16, 32), nn.Linear(32, 4)
        layers = [nn.Linear(32, 32) for _ in range(2)]
        self.layers: Any = nn.ModuleList(layers) if registers else layers

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x).relu()
        for layer in self.layers:
            x = x + layer(x).relu()
        return self.last(x)


def in_a_list(ctx: EntryContext, faulty: bool) -> nn.Module:
    """Two layers are in a plain list of the model."""
    torch.manual_seed(0)
    return fit(ctx, Regression(), wrapped(_Residual(registers=not faulty)), steps=10)


def of_the_loss(ctx: EntryContext, faulty: bool) -> nn.Module:
    """The weights of the loss are in no group."""
    model, problem = Regression().model(), Regression()
    log_scale = nn.Parameter(torch.zeros(()))
    params = [*model.parameters(), *([] if faulty else [log_scale])]

    def loss_of(called: nn.Module, batch: Any) -> Tensor:
        return problem.loss(called, batch) * torch.exp(-log_scale) + log_scale

    return fit(ctx, problem, model, optimizer=torch.optim.SGD(params, lr=0.05), loss_of=loss_of, steps=10)


def cast_once(ctx: EntryContext, faulty: bool) -> nn.Module:
    """One autocast context is around the loop."""
    problem = Regression()

    def context(*, is_open: bool) -> contextlib.AbstractContextManager[Any]:
        return torch.autocast("cpu", torch.bfloat16) if is_open else contextlib.nullcontext()

    def loss_of(model: nn.Module, batch: Any) -> Tensor:
        with context(is_open=not faulty):
            return problem.loss(model, batch)

    with context(is_open=faulty):
        return fit(ctx, problem, problem.model(), loss_of=loss_of, batches=batches_of(ctx, problem), steps=10)


_left_out = variants(
    "Y1",
    ("weights-left-out",),
    trains_differently,
    step=2,
    family=PARAMETERS_OF_OPTIMIZERS,
    causes=("layers-not-registered",),
)

ENTRIES = (
    _left_out("", "layers are in a plain list of the model", in_a_list, ranks=(0, 1), site="layers.0.weight"),
    _left_out("loss", "weights of the loss are in no group of the optimizer", of_the_loss, ranks=(0,), world_size=1),
    Fault(
        "Y2",
        "one autocast context is open around the whole loop",
        cast_once,
        ("stale-weights",),
        trains_differently,
        ranks=(0,),
        step=8,
        world_size=1,
        family="copies of casts",
        causes=("weights-cast-once",),
    ),
)
