"""A training job that a remedy in one place makes well: `remedies_job.py KIND`.

``overflow``: one of four layers in float16 squares more than float16 holds, in some steps. ``spikes``: the gradient of
the embedding is mostly noise every fifth step. ``none``: nothing is wrong.
"""

import sys

import torch
from torch import nn

KIND = sys.argv[1]


class Block(nn.Module):
    """(W x)^2 / ((W x)^2 + 1), whose square may overflow."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(16, 16).half()

    def forward(self, x):
        y = self.inner(x)
        return y * y / (y * y + 1)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(20, 16)
        self.blocks = nn.ModuleList([Block() for _ in range(4)])
        self.head = nn.Linear(16, 20)

    def forward(self, ids, scale):
        x = self.embed(ids).mean(1)
        for number, block in enumerate(self.blocks):
            grow = scale if number == 2 else 1.0
            x = x + block((x * grow).half()).float()
        return self.head(x)


torch.manual_seed(0)
model = Model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
if KIND == "spikes":
    model.embed.weight.register_hook(lambda grad: grad + 20 * torch.randn_like(grad) if step % 5 == 4 else grad)
step = 0
for step in range(20):  # noqa: B007  # the hook reads it
    ids = torch.randint(20, (32, 3))
    scale = 3000.0 if KIND == "overflow" and torch.rand(()) < 0.5 else 1.0
    loss = nn.functional.cross_entropy(model(ids, scale), ids[:, 0])
    optimizer.zero_grad()
    loss.backward()
    for param in model.parameters():
        param.grad.nan_to_num_(0.0, 0.0, 0.0)
    optimizer.step()
