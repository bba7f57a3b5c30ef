"""A model that gives a judge little to judge: copies, calls that only one run makes, random branches, decisions.

Letters: B batch, D width.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from benchmarks.compare.corpus.kit import Batch, Training, family
from torch import Tensor, nn
from torch.nn import functional

NUM_COPIES = 20


class Block(nn.Module):
    """x + ``inside(b(gelu(a(x))))``; ``branch`` computes what is added, and may be replaced."""

    def __init__(self, inside: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.a, self.b, self.inside = nn.Linear(32, 32), nn.Linear(32, 32), inside

    def branch(self, x_BD: Tensor) -> Tensor:
        return self.b(functional.gelu(self.a(x_BD)))

    def forward(self, x_BD: Tensor) -> Tensor:
        return x_BD + self.inside(self.branch(x_BD))


def copies(h_BD: Tensor) -> Tensor:
    """Nothing but copies."""
    for _ in range(NUM_COPIES):
        h_BD = h_BD.reshape(h_BD.shape).clone().view(h_BD.shape)
    return h_BD


def some_samples(h_BD: Tensor, *, kept: float = 0.9) -> Tensor:
    """Samples dropped at random, as stochastic depth does; those that stay are divided by ``kept``."""
    return h_BD * (torch.rand(len(h_BD), 1) < 0.9).to(h_BD.dtype) / kept


def sorted_and_back(h_BD: Tensor) -> Tensor:
    """Elements in an order that rounding may decide, and back."""
    order_BD = h_BD.argsort(-1)
    return torch.gather(torch.gather(h_BD, -1, order_BD), -1, order_BD.argsort(-1))


@family("decoys")
def decoys() -> Training:
    blocks = [Block(inside) for inside in (copies, some_samples, sorted_and_back, copies)]
    model = nn.Sequential(nn.Linear(16, 32), *blocks, nn.Linear(32, 10))

    def batch(draw: torch.Generator) -> Batch:
        return {"x": torch.randn(24, 16, generator=draw), "y": torch.randint(10, (24,), generator=draw)}

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        return functional.cross_entropy(model(batch["x"]).float(), batch["y"])

    return Training(model, batch, loss)
