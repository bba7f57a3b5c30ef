"""U1. The optimizer's kernel does other than its settings declare.

Who had it: fused kernels of vendors and extensions with another bias correction, decay or rate than the plain form;
Megatron-LM #5976, whose count of updates was one too high.
Planted: from step 6 on the for-loop of Adam is called with 1.25 times the rate, or keeps the first moment of one
parameter as it was, or counts twice.
Twin: the same for-loop as it is.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any
from unittest.mock import patch

import torch
import torch.optim.adam as adam  # pyright: ignore[reportMissingImports]
from torch import nn
from torch.optim import Optimizer

from gallery.entry import variants
from gallery.entry_context import EntryContext
from gallery.families import KERNELS_OF_OPTIMIZERS
from gallery.problems import Regression
from gallery.training import fit
from gallery.witness import trains_differently

TRIGGER = 6
Kernel = Callable[..., None]


def faster(plain: Kernel, *args: Any, lr: float, **settings: Any) -> None:
    """Another rate than the group's."""
    plain(*args, lr=1.25 * lr, **settings)


def forgetful(plain: Kernel, params: Any, grads: Any, moments: Any, *args: Any, **settings: Any) -> None:
    """The first moment of the first parameter stays."""
    before = moments[0].clone()
    plain(params, grads, moments, *args, **settings)
    moments[0].copy_(before)


def counting_twice(plain: Kernel, *args: Any, **settings: Any) -> None:
    """Each update is counted twice."""
    plain(*args, **settings)
    for count in args[5]:
        count += 1


def with_kernel(ctx: EntryContext, faulty: bool, *, change: Callable[..., None]) -> nn.Module:
    """AdamW in its for-loop form, from ``TRIGGER`` on with ``change`` around the loop."""
    model = Regression().model()
    optimizer: Optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, foreach=False)
    plain: Kernel = adam._single_tensor_adam
    calls = iter(range(1_000))

    def kernel(*args: Any, **settings: Any) -> None:
        planted = next(calls) >= TRIGGER and faulty
        change(plain, *args, **settings) if planted else plain(*args, **settings)

    with patch.object(adam, "_single_tensor_adam", kernel):
        return fit(ctx, Regression(), model, optimizer=optimizer)


_fault = variants(
    "U1",
    ("update-magnitude",),
    trains_differently,
    step=TRIGGER,
    ranks=(0,),
    world_size=1,
    family=KERNELS_OF_OPTIMIZERS,
    causes=("optimizer-state-not-advanced",),
)

ENTRIES = (
    _fault(
        "",
        "the kernel of Adam uses another rate than is declared",
        partial(with_kernel, change=faster),
        causes=("update-rule-differs",),
    ),
    _fault(
        "moment",
        "a first moment stays",
        partial(with_kernel, change=forgetful),
        must_find=("optimizer-state-stale",),
        may_find=("update-magnitude",),
        site="0.weight",
    ),
    _fault(
        "count",
        "updates are counted twice",
        partial(with_kernel, change=counting_twice),
        must_find=("optimizer-state-stale",),
        may_find=("update-magnitude",),
    ),
)
