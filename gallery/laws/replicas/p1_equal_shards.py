"""P1. Shards of tensor parallelism begin equal.

Who had it: flash-linear-attention#739; whoever makes a model on the meta device, cuts it and then draws initial values,
where DTensors have no generators of their own.
Planted: the values of two layers are drawn after they were cut, on each rank from the same seed.
Twin: they are drawn before.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from gallery.entry import variants
from gallery.entry_context import EntryContext
from gallery.families import INITIAL_VALUES
from gallery.training import adamw
from gallery.witness import trains_differently

STEPS, DIM = 12, 16


class Block(nn.Module):
    """A norm that every rank holds whole, and two layers that are cut along columns, then rows."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(DIM)
        self.up = nn.Linear(DIM, 2 * DIM)
        self.down = nn.Linear(2 * DIM, DIM)

    def forward(self, x: Tensor) -> Tensor:
        """Of [B, DIM]."""
        return x + self.down(torch.tanh(self.up(self.norm(x))))


def drawn_alike(ctx: EntryContext, faulty: bool) -> nn.Module:
    """Initial values are drawn before the model is cut, or after it."""
    mesh = init_device_mesh("cpu", (ctx.world_size,), mesh_dim_names=("tp",))
    torch.manual_seed(0)
    model = nn.Sequential(Block(), Block())
    for block in model:
        parallelize_module(block, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
    if faulty:
        torch.manual_seed(0)
        for layer in (layer for block in model for layer in (block.up, block.down)):
            layer.reset_parameters()  # type: ignore[operator]
    optimizer = adamw(model)
    watching = ctx.watch(model, optimizer)
    for step in range(STEPS):
        x = torch.randn(8, DIM, generator=torch.Generator().manual_seed(step))
        with watching.step(x):
            loss = model(x).square().mean()
            watching.loss(loss.detach())
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        ctx.note([x], loss.item())
    watching.close()
    return model


_fault = variants(
    "P1", ("shards-equal",), trains_differently, ranks=(0, 1), family=INITIAL_VALUES, causes=("shards-drawn-alike",)
)

ENTRIES = (_fault("", "shards are drawn from one seed", drawn_alike),)
