"""U6. Gradients are not cleared between updates.

Who had it: every second question on a loss that does not fall (stackoverflow.com/q/60335387 is in TrainCheck's
collection); scripts with two optimizers that clear one of them twice.
Planted: from step 6 on ``zero_grad`` does nothing; or spares the first layer, on one rank of two.
Twin: it clears all, by filling with zeros as it did before torch 2.0.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import nn

from gallery.entry import variants
from gallery.entry_context import EntryContext
from gallery.families import GRADIENTS_THAT_ARE_KEPT
from gallery.problems import Regression
from gallery.training import fit, wrapped
from gallery.witness import trains_differently

TRIGGER = 6


class _Forgetful(torch.optim.AdamW):
    """Spares the first ``num_kept`` parameters from its ``after``-th ``zero_grad`` on."""

    num_kept = 0
    after = TRIGGER - 1
    calls = 0

    def zero_grad(self, set_to_none: bool = True) -> None:
        params: list[Any] = [param for group in self.param_groups for param in group["params"]]
        spared = self.num_kept if self.calls >= self.after else 0
        for param in params[spared:]:
            param.grad.zero_()
        self.calls += 1


def kept(ctx: EntryContext, faulty: bool, *, num_kept: int = 1_000, on_ranks: tuple[int, ...] = (0, 1)) -> nn.Module:
    """Gradients of the first parameters stay."""
    problem = Regression()
    model: Any = problem.model() if ctx.world_size == 1 else wrapped(problem.model())
    optimizer = _Forgetful(model.parameters(), lr=3e-3)
    optimizer.num_kept = num_kept if faulty and ctx.rank in on_ranks else 0
    return fit(ctx, problem, model, optimizer=optimizer)


_fault = variants(
    "U6",
    ("grad-accumulates",),
    trains_differently,
    step=TRIGGER,
    within=1,
    ranks=(0,),
    world_size=1,
    family=GRADIENTS_THAT_ARE_KEPT,
    causes=("gradients-not-cleared",),
)

ENTRIES = (
    _fault("", "gradients are never cleared", kept),
    _fault(
        "one-rank",
        "those of the first layer are not cleared on one rank",
        partial(kept, num_kept=2, on_ranks=(1,)),
        ranks=(1,),
        site="0.weight",
        world_size=2,
        variant_of="U6",
    ),
)
