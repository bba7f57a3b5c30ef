"""X5. What one rank sends to another arrives as something else.

Who had it: pytorch#84803, pytorch#96600 and Baichuan2#86: links between two devices that lose data without an error.
Planted: from step 4 on the second half of what rank 1 receives is lost, in one of four transfers.
Twin: the same exchange, whole.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from gallery.entry import variants
from gallery.entry_context import EntryContext
from gallery.families import CORRUPTED_COLLECTIVES
from gallery.problems import Regression
from gallery.training import fit
from gallery.witness import replicas_differ

FIRST, EVERY = 4, 4


class Arrived:
    """A transfer that is over."""

    def wait(self) -> bool:
        return True


@contextlib.contextmanager
def lossy_link(loses: Callable[[int], bool]) -> Iterator[None]:
    """Below whoever calls it, the half of a transfer of which ``loses`` is true of its number is not there."""
    received = vars(dist.ProcessGroup)["recv"]  # what getattr gives is bound to no group any more once it is put back
    number = -1

    def recv(group: Any, tensors: list[torch.Tensor], *args: Any) -> Any:
        nonlocal number
        number += 1
        work = received(group, tensors, *args)
        if not loses(number):
            return work
        work.wait()
        tensors[0][len(tensors[0]) // 2 :] = 0
        return Arrived()

    dist.ProcessGroup.recv = recv  # type: ignore[method-assign]
    try:
        yield
    finally:
        dist.ProcessGroup.recv = received  # type: ignore[method-assign]


def exchanged(ctx: EntryContext, faulty: bool) -> nn.Module:
    """Two ranks average their gradients by sending them to each other."""
    model = Regression().model()
    peer = 1 - ctx.rank

    def exchange(step: int) -> None:
        params = [param for param in model.parameters() if param.grad is not None]
        flat = torch.cat([param.grad.flatten() for param in params])
        arrived = torch.empty_like(flat)
        calls = [dist.P2POp(dist.isend, flat, peer), dist.P2POp(dist.irecv, arrived, peer)]
        for work in dist.batch_isend_irecv(calls):
            work.wait()
        parts = ((flat + arrived) / 2).split([param.numel() for param in params])
        for param, part in zip(params, parts, strict=True):
            param.grad.copy_(part.view_as(param))

    with lossy_link(lambda number: faulty and ctx.rank == 1 and number >= FIRST and number % EVERY == 0):
        return fit(ctx, Regression(), model, after_backward=exchange)


_fault = variants(
    "X5",
    ("received-differs",),
    replicas_differ,
    may_find=("replica-drift", "gradient-not-reduced", "reduction-mismatch", "updates-apart"),
    ranks=(0, 1),
    step=FIRST,
    within=1,
    family=CORRUPTED_COLLECTIVES,
    causes=("transfer-corrupted",),
)

ENTRIES = (_fault("", "half of a transfer is lost, in one of four", exchanged),)
