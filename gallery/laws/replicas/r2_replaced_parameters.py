"""R2. Parameters are replaced after wrapping, so the wrapper reduces tensors that nobody trains.

Who had it: P#104336 (moving a wrapped model to the CPU and back makes autograd forget the reducer's hooks), P#12603
(a weight assigned after the constructor). The new parameters start equal and then follow their own rank's data.
Planted: a head re-created after DDP, as resizing a vocabulary does; a cast to double and back, which drops the
gradient accumulators as a change of device does; parameters that DDP was told to ignore and that nobody else reduces.
Twin: the same, done before wrapping.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from gallery.entry import variants
from gallery.entry_context import EntryContext
from gallery.problems import CausalLM, Regression
from gallery.training import fit, wrapped
from gallery.witness import replicas_differ

TRIGGER = 6
HEAD = "head.weight"


def new_head(ctx: EntryContext, faulty: bool) -> nn.Module:
    """`model.module.head = nn.Linear(...)` after DDP; equal on all ranks, as the seed is."""
    problem = CausalLM()
    base = problem.model()
    if not faulty:
        _replace_head(base)
    model = wrapped(base, find_unused_parameters=True)
    if faulty:
        _replace_head(base)
    return fit(ctx, problem, model)


def cast_and_back(ctx: EntryContext, faulty: bool) -> nn.Module:
    """`model.double()` for a measurement and back, between two steps."""
    problem = Regression()
    model = wrapped(problem.model())

    def measure(step: int) -> None:
        if faulty and step == TRIGGER - 1:
            model.double()
            model.float()

    return fit(ctx, problem, model, after_step=measure)


def assigned(ctx: EntryContext, faulty: bool) -> nn.Module:
    """`load_state_dict(assign=True)` after DDP: every parameter is another object from then on."""
    problem = CausalLM()
    base = problem.model()
    state = {name: value.clone() for name, value in problem.model(seed=3).state_dict().items()}
    base.load_state_dict(state, assign=not faulty)
    model = wrapped(base, find_unused_parameters=True)
    if faulty:
        base.load_state_dict({name: value.clone() for name, value in state.items()}, assign=True)
    return fit(ctx, problem, model)


def added(ctx: EntryContext, faulty: bool) -> nn.Module:
    """An adapter is put into the model after DDP, as fine-tuning libraries do when called in the wrong order."""
    problem = CausalLM()
    base = problem.model()
    if not faulty:
        _add_adapter(base)
    model = wrapped(base)
    if faulty:
        _add_adapter(base)
    return fit(ctx, problem, model)


def ignored(ctx: EntryContext, faulty: bool) -> nn.Module:
    """A parameter on DDP's list of those that somebody else reduces."""
    problem = CausalLM()
    base = problem.model()
    if faulty:
        DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(base, [HEAD])
    model = wrapped(base)
    return fit(ctx, problem, model)


class _Adapted(nn.Module):
    def __init__(self, inner: nn.Module, width: int) -> None:
        super().__init__()
        self.inner, self.low_rank = inner, nn.Sequential(nn.Linear(width, 4), nn.Linear(4, width))

    def forward(self, x_BLD: Tensor) -> Tensor:
        return self.inner(x_BLD) + self.low_rank(x_BLD)


def _add_adapter(model: nn.Module) -> None:
    torch.manual_seed(5)
    model.blocks[1].mlp = _Adapted(model.blocks[1].mlp, model.head.in_features)


def _replace_head(model: nn.Module) -> None:
    torch.manual_seed(5)
    model.head = nn.Linear(model.head.in_features, model.head.out_features, bias=False)


_fault = variants(
    "R2",
    ("replica-drift",),
    replicas_differ,
    may_find=("gradient-not-reduced", "reduction-mismatch"),
    ranks=(0, 1),
    within=1,
    family="parameters that are replaced",
    causes=("parameter-outside-wrapper",),
)

ENTRIES = (
    _fault("", "head re-created after DDP", new_head, site=HEAD),
    _fault("cast", "model cast and cast back after DDP", cast_and_back, step=TRIGGER),
    _fault("assign", "load_state_dict(assign=True) after DDP", assigned),
    _fault("added", "adapter added after DDP", added, site="low_rank"),
    _fault("ignored", "parameter on DDP's ignore list", ignored, site=HEAD),
)
