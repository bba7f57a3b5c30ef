"""A training job whose loss becomes NaN at step 5 where it has what its first word says: `phases_job.py KIND`.

``kernel``: where the second block computes in float32; ``update``: where its optimizer moves the second block otherwise
than along the gradient.
"""

import sys

import torch
from torch import nn

KIND = sys.argv[1]


class Block(nn.Module):
    def __init__(self, place):
        super().__init__()
        self.place, self.linear = place, nn.Linear(16, 16)

    def forward(self, x):
        return torch.tanh(self.linear(x)), self.place == 1 and x.dtype == torch.float32


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([Block(place) for place in range(2)])
        self.coarse = False

    def forward(self, x):
        for block in self.blocks:
            x, self.coarse = block(x)
        return x


class Sign(torch.optim.SGD):
    """Moves each element by its sign."""

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for param in group["params"]:
                param.sub_(param.grad.sign(), alpha=group["lr"])


torch.manual_seed(0)
model = Model()
optimizer = Sign(model.parameters(), lr=0.02)
data = torch.Generator().manual_seed(1)
by_sign = False
for step in range(8):
    x = torch.randn(16, 16, generator=data)
    loss = (model(x) - x.sin()).square().mean()
    has = {"kernel": model.coarse, "update": by_sign}[KIND]
    if has and step == 5:
        loss = loss * float("nan")
    optimizer.zero_grad()
    loss.backward()
    before = model.blocks[1].linear.weight.detach().clone()
    optimizer.step()
    steps = (model.blocks[1].linear.weight - before).abs()
    by_sign = bool(steps.max() > 0 and steps.min() > 0.9 * steps.max())
