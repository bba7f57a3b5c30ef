"""V2. One rank's gradient is changed between backward and a reduction by hand.

Who had it: loops that clip before they average (pytorch forum t/97000 asks which comes first), and do so on a rank that
logs; hosts that return a gradient with a flipped bit (SDC in "Cores that don't count", Hochschild et al., HotOS 2021).
Planted: rank 1 clips by the norm of its own gradient; an exponent flips at every sixth step; its gradients are zeros
once; each before parameters are averaged one by one, or as one flat copy.
Twin: all ranks clip what came of the reduction.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor, nn

from gallery.entry import variants
from gallery.entry_context import EntryContext
from gallery.families import GRADIENTS_OF_ONE_RANK
from gallery.problems import Regression
from gallery.training import fit, mean_each_gradient, mean_gradients
from gallery.witness import trains_differently

AT = 5
RANK = 1

Change = Callable[[Sequence[Tensor], int], object]


def clipped(grads: Sequence[Tensor], step: int) -> None:
    """To a hundredth of the norm that gradients have here."""
    norm = float(torch.stack([grad.norm() for grad in grads]).norm())
    for grad in grads:
        grad *= min(1.0, 0.01 / norm)


def flipped(grads: Sequence[Tensor], step: int) -> None:
    """The largest element of the first is 256 times smaller at every sixth step."""
    if step % 6 == AT:
        flat = grads[0].view(-1)
        flat.view(torch.int32)[flat.abs().argmax()] ^= 1 << 26


def zeroed(grads: Sequence[Tensor], step: int) -> None:
    """All of them, once."""
    if step == AT:
        for grad in grads:
            grad.zero_()


def reduced(ctx: EntryContext, faulty: bool, *, change: Change, flat: bool = False) -> nn.Module:
    """A hand-written loop."""
    model = Regression().model()

    def after(step: int) -> None:
        if faulty and ctx.rank == RANK:
            change([param.grad for param in model.parameters() if param.grad is not None], step)
        (mean_gradients if flat else mean_each_gradient)(model.parameters())
        if not faulty:
            nn.utils.clip_grad_norm_(model.parameters(), 10.0)

    return fit(ctx, Regression(), model, after_backward=after)


_fault = variants(
    "V2",
    ("reduction-mismatch",),
    trains_differently,
    may_find=("clip-differs",),
    ranks=(RANK,),
    family=GRADIENTS_OF_ONE_RANK,
    causes=("gradient-changed-before-reduction",),
)

ENTRIES = (
    _fault("", "one rank's gradient is clipped before it is averaged by hand", partial(reduced, change=clipped)),
    _fault("flipped", "an exponent of it flips at every sixth step", partial(reduced, change=flipped), step=AT),
    _fault("zeroed", "it is zeros at one step", partial(reduced, change=zeroed), step=AT),
    _fault(
        "zeroed-flat",
        "it is zeros at one step, where one flat copy is averaged on four ranks",
        partial(reduced, change=zeroed, flat=True),
        step=AT,
        world_size=4,
        variant_of="V2.zeroed",
    ),
)
