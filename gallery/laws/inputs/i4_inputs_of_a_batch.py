"""I4, I5. What is drawn at each step is one for the whole batch; two inputs of a model are one.

Who had it: flow matching with `random.randint` in front of the batch (x-flux#133); replay memories that keep the array
which the environment writes over (SuperSuit#116).
Planted: one time for all samples; the state after an action in place of the one before.
Twin: a time for each sample; two states.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from gallery.entry import Fault
from gallery.entry_context import EntryContext
from gallery.laws.inputs.i2_constant_inputs import TIMES, WIDTH, denoising
from gallery.problems import Regression, Rows
from gallery.training import fit
from gallery.witness import trains_differently


class _Dynamics(nn.Module):
    """The action [B, 4] between two states [B, D]."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(2 * WIDTH, 32), nn.ReLU(), nn.Linear(32, 4))

    def forward(self, state: Tensor, next_state: Tensor) -> Tensor:
        return self.body(torch.cat((state, next_state), -1))


class _Transitions(Regression):
    """States, and those that an action leads to."""

    def model(self, *, seed: int = 0) -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return _Dynamics()

    def dataset(self, num_samples: int, *, seed: int = 0) -> Rows:
        draw = torch.Generator().manual_seed(seed)
        state_BD, action_BC = (torch.randn(num_samples, size, generator=draw) for size in (WIDTH, 4))
        return Rows({"x": state_BD, "next": state_BD + action_BC.repeat(1, WIDTH // 4), "y": action_BC})


def _transitions(ctx: EntryContext, faulty: bool) -> nn.Module:
    def loss_of(model: nn.Module, batch: Any) -> Tensor:
        before_BD = batch["next"].clone() if faulty else batch["x"]
        return functional.mse_loss(model(before_BD, batch["next"]), batch["y"])

    return fit(ctx, _Transitions(), _Transitions().model(), loss_of=loss_of)


ENTRIES = (
    Fault(
        "I4",
        "one time of a diffusion model is drawn for the whole batch",
        denoising(times=lambda rows, draw: torch.randint(0, TIMES, (1,), generator=draw).expand(rows)),
        ("one-for-all-samples",),
        trains_differently,
        ranks=(0, 1),
        family="draws of samples",
    ),
    Fault(
        "I5",
        "the state before an action is the one after it",
        _transitions,
        ("inputs-equal",),
        trains_differently,
        world_size=1,
        ranks=(0,),
        family="inputs that carry nothing",
    ),
)
