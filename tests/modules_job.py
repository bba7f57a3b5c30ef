"""A training job of which single modules may be wrong: `modules_job.py KIND[,KIND…] [STEPS]`.

``gelu`` takes the tanh form of GELU in block 2, ``norm`` another epsilon in block 1, ``backward`` scales a gradient in
block 0, ``glue`` adds up wrongly between modules in block 3, ``call`` by a call that is not there else in block 1;
``weights`` starts from other weights, ``none`` is as it
should be.
"""

import sys

import torch
from torch import nn

KINDS = sys.argv[1].split(",")


class Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 1.05


class Activation(nn.Module):
    def __init__(self, place):
        super().__init__()
        self.approximate = "tanh" if "gelu" in KINDS and place == 2 else "none"
        self.scales = "backward" in KINDS and place == 0

    def forward(self, x):
        x = nn.functional.gelu(x, approximate=self.approximate)
        return Scaled.apply(x) if self.scales else x


class Block(nn.Module):
    def __init__(self, place):
        super().__init__()
        self.norm = nn.LayerNorm(32, eps=1e-3 if "norm" in KINDS and place == 1 else 1e-5)
        self.up, self.act, self.down = nn.Linear(32, 64), Activation(place), nn.Linear(64, 32)
        self.calls = "call" in KINDS and place == 1
        self.part = 1.01 if "glue" in KINDS and place == 3 else 1.0

    def forward(self, x):
        given = self.norm(x) * 1.01 if self.calls else self.norm(x)
        return x + self.part * self.down(self.act(self.up(given)))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([Block(place) for place in range(4)])
        self.head = nn.Linear(32, 8)

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.head(x)


torch.manual_seed(0)
model = Model()
if "weights" in KINDS:
    with torch.no_grad():
        model.blocks[1].up.weight.mul_(1.01)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
data = torch.Generator().manual_seed(1)
total = torch.zeros(())
for _ in range(int(sys.argv[2]) if len(sys.argv) > 2 else 6):
    x = torch.randn(16, 32, generator=data)
    loss = (model(x) - x[:, :8].sin()).square().mean()
    optimizer.zero_grad()
    loss.backward()
    total += loss.detach()  # another number where steps before were others
    optimizer.step()
