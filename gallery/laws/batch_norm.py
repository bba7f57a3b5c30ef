"""B1. The running statistics of batch normalisation are not those of training: only evaluation and inference show it.

Who had it: kernels and hand-written synchronised forms that keep the biased variance, or the mean of the variances of
the ranks; everybody who leaves out the update of a batch with infinity in it, but not its forward pass.
Planted: these three. SyncBatchNorm has no kernel for CPUs, and DDP refuses it there: both runs have ours, and reduce
by hand.
Twin: the rule of torch; the batch is left out before the model sees it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch.amp import GradScaler
from torch.distributed.nn.functional import all_reduce

from gallery.entry import variants
from gallery.entry_context import EntryContext
from gallery.problems import Vision
from gallery.training import batches_of, fit, mean_gradients
from gallery.witness import keeps_differently

BAD_BATCH = 3
_torchs = nn.functional.batch_norm


def biased(ctx: EntryContext, faulty: bool) -> nn.Module:
    """The kernel divides by n instead of n - 1."""
    with patch.object(nn.functional, "batch_norm", _by_n if faulty else _torchs):
        return fit(ctx, Vision(), Vision().model())


def of_ranks(ctx: EntryContext, faulty: bool) -> nn.Module:
    """The running variance is the mean of those of the ranks, which leaves out how far apart their means are."""
    with patch.object(nn.SyncBatchNorm, "forward", _synchronised(mean_of_variances=faulty)):
        model = nn.SyncBatchNorm.convert_sync_batchnorm(Vision().model())
        return fit(ctx, Vision(), model, after_backward=lambda step: mean_gradients(model.parameters()))


def poisoned(ctx: EntryContext, faulty: bool) -> nn.Module:
    """A pixel of one batch is infinite: the scaler leaves out its update, or the loader the batch."""
    return fit(ctx, Vision(), Vision().model(), batches=_with_infinity(ctx, faulty), scaler=GradScaler("cpu"))


def _by_n(x: Tensor, mean: Any, variance: Any, *args: Any, **kwargs: Any) -> Tensor:
    kept = variance.clone()
    normal = _torchs(x, mean, kept, *args, **kwargs)
    num, momentum = x.numel() / x.shape[1], args[3]
    old = (1 - momentum) * variance
    variance.copy_(old + (kept - old) * (num - 1) / num)
    return normal


def _synchronised(*, mean_of_variances: bool) -> Callable[..., Tensor]:
    def forward(self: Any, x: Tensor) -> Tensor:
        dims, ranks = [0, *range(2, x.dim())], torch.distributed.get_world_size()
        shape = [1, -1, *[1] * (x.dim() - 2)]
        mean_C = all_reduce(x.mean(dims)) / ranks
        variance_C = all_reduce((x - mean_C.view(shape)).square().mean(dims)) / ranks
        with torch.no_grad():
            own_C = all_reduce(x.var(dims)) / ranks
            num = ranks * x.numel() / x.shape[1]
            kept_C = own_C if mean_of_variances else variance_C * num / (num - 1)
            self.num_batches_tracked.add_(1)
            self.running_mean.lerp_(mean_C, self.momentum)
            self.running_var.lerp_(kept_C, self.momentum)
        normal = (x - mean_C.view(shape)) / (variance_C + self.eps).sqrt().view(shape)
        return normal * self.weight.view(shape) + self.bias.view(shape)

    return forward


def _with_infinity(ctx: EntryContext, faulty: bool) -> Iterator[Any]:
    for number, batch in zip(itertools.count(), batches_of(ctx, Vision()), strict=False):
        if number == BAD_BATCH:
            batch["image"][0, 0, 0, 0] = math.inf
        if number != BAD_BATCH or faulty:
            yield batch


_fault = variants(
    "B1", ("batch-norm-differs",), keeps_differently, family="running statistics", causes=("running-statistics-wrong",)
)

ENTRIES = (
    _fault("", "the running variance of batch normalisation is the biased one", biased, ranks=(0,), world_size=1),
    _fault("sync", "SyncBatchNorm keeps the mean of the variances of the ranks", of_ranks),
    _fault(
        "poisoned",
        "a batch with infinity leaves NaN in running statistics, its update is left out",
        poisoned,
        ranks=(0,),
        step=BAD_BATCH,
        world_size=1,
        causes=("batch-not-finite-kept",),
    ),
)
