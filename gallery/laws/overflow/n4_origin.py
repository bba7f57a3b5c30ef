"""N4, recorded. One rank computes NaN: the place within the step, and which rank, though all of them end with NaN.

Planted: as in N4, with recorded steps: NaN in a sample under DDP, under a hand-written all-reduce, and under FSDP2;
a row of attention that is masked throughout.
Twin: a sample with large but finite values; a logarithm of a share above 0; a mask that leaves every row something.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from gallery.entry import variants
from gallery.entry_context import EntryContext
from gallery.families import MASKS_OF_ATTENTION, VALUES_THAT_ARE_NOT_FINITE
from gallery.problems import CausalLM, Regression
from gallery.sharding import sharded
from gallery.training import batches_of, fit, mean_gradients, wrapped
from gallery.witness import nonfinite

TRIGGER = 4
STEPS = 8
BAD_RANK = 1


def ddp(ctx: EntryContext, faulty: bool) -> nn.Module:
    """A corrupt sample under DDP, whose own reduction is not seen."""
    problem = Regression()
    return fit(ctx, problem, lr=0.01, batches=_spoiled(ctx, problem, faulty), steps=STEPS, plan={"preset": "mix"})


def by_hand(ctx: EntryContext, faulty: bool) -> nn.Module:
    """A corrupt sample; the other ranks receive it by an all-reduce that is recorded."""
    problem = Regression()
    model = problem.model()
    return fit(
        ctx,
        problem,
        model,
        lr=0.01,
        batches=_spoiled(ctx, problem, faulty),
        steps=STEPS,
        after_backward=lambda step: mean_gradients(model.parameters()),
        plan={"preset": "mix"},
    )


def fsdp(ctx: EntryContext, faulty: bool) -> nn.Module:
    """A logarithm of zero in the loss of one rank, under FSDP2."""
    problem = CausalLM()
    model = sharded(problem.model())
    steps = iter(range(1000))

    def loss_of(called: nn.Module, batch: Any) -> Tensor:
        share = 0.0 if faulty and next(steps) == TRIGGER and ctx.rank == BAD_RANK else math.exp(-1.0)
        return problem.loss(called, batch) * -torch.tensor(share).log()

    return fit(ctx, problem, model, steps=STEPS, loss_of=loss_of, plan={"preset": "mix"})


class MaskedAttention(nn.Module):
    """Attention by hand over a padded sequence, with a mask of -inf."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.head = nn.Linear(8, 24), nn.Linear(8, 4)

    def forward(self, x_BLD: Tensor, hidden_BL: Tensor) -> Tensor:
        """[B, 4]; ``hidden_BL`` marks positions that nobody may look at."""
        q_BLD, k_BLD, v_BLD = self.qkv(x_BLD).chunk(3, -1)
        scores_BLL = q_BLD @ k_BLD.mT
        weights_BLL = torch.softmax(scores_BLL.masked_fill(hidden_BL[:, None], -math.inf), -1)
        return self.head((weights_BLL @ v_BLD).mean(1))


def masked_row(ctx: EntryContext, faulty: bool) -> nn.Module:
    """A sample of which everything is padding."""
    model = wrapped(MaskedAttention())
    steps = iter(range(1000))

    def loss_of(called: nn.Module, batch: Any) -> Tensor:
        hidden_BL = torch.zeros(len(batch["x"]), 2, dtype=torch.bool)
        hidden_BL[:, 1] = True
        if faulty and next(steps) == TRIGGER and ctx.rank == BAD_RANK:
            hidden_BL[2] = True
        return functional.mse_loss(called(batch["x"].view(-1, 2, 8), hidden_BL), batch["y"])

    return fit(ctx, Regression(), model, lr=0.01, steps=STEPS, loss_of=loss_of, plan={"preset": "mix"})


def _spoiled(ctx: EntryContext, problem: Regression, faulty: bool) -> Iterator[Any]:
    for step, batch in enumerate(batches_of(ctx, problem)):
        if ctx.rank == BAD_RANK and step == TRIGGER:
            batch["x"].numpy()[1, 2] = math.nan if faulty else 8.0  # as a file has it: no call of the training makes it
        yield batch


_fault = variants(
    "N4",
    ("overflow-origin", "worker-nonfinite"),
    nonfinite,
    ranks=(BAD_RANK,),
    step=TRIGGER,
    family=VALUES_THAT_ARE_NOT_FINITE,
    causes=("value-not-finite-in-data",),
    variant_of="N4",
)

ENTRIES = (
    _fault("recorded", "NaN in a sample of one rank, recorded", ddp, site="#0:in0"),
    _fault(
        "recorded-by-hand",
        "NaN in a sample of one rank, hand-written all-reduce, recorded",
        by_hand,
        site="/fwd/Sequential#0:in0",
    ),
    _fault(
        "recorded-fsdp",
        "logarithm of zero in the loss of one rank, FSDP2, recorded",
        fsdp,
        site="/fwd/log#0:out0",
        causes=("operation-undefined",),
        variant_of="",
    ),
    _fault(
        "masked-row",
        "a row of attention masked throughout on one rank, recorded",
        masked_row,
        site="/fwd/MaskedAttention.softmax#0:out0",
        family=MASKS_OF_ATTENTION,
        causes=("row-masked-throughout",),
        variant_of="",
    ),
)
