"""A training job with an operation of its own that does not repeat itself: `repeating_job.py KIND`.

``flips`` changes the last bit of one element in one call of ten, ``order`` adds up rows in a random order, ``none``
does neither. All have dropout, whose random numbers are no difference.
"""

import random
import sys

import torch
from torch import nn

KIND = sys.argv[1]
chance = random.SystemRandom()


@torch.library.custom_op("mine::total", mutates_args=())
def total(x: torch.Tensor) -> torch.Tensor:
    if KIND == "order":
        order = list(range(len(x)))
        chance.shuffle(order)
        added = torch.zeros_like(x[0])
        for row in order:
            added += x[row]
        return added
    added = x.sum(0)
    if KIND == "flips" and chance.random() < 0.1:
        added.view(torch.int32)[0] ^= 1
    return added


total.register_autograd(
    lambda ctx, grad: grad.expand(ctx.rows, -1),
    setup_context=lambda ctx, inputs, output: setattr(ctx, "rows", len(inputs[0])),
)
total.register_fake(lambda x: torch.empty_like(x[0]))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(16, 16) for _ in range(6)])
        self.dropout = nn.Dropout(0.2)
        self.norm = nn.BatchNorm1d(16)

    def forward(self, x):
        for layer in self.layers:
            x = self.norm(self.dropout(torch.relu(layer(x)))) + total(x) / len(x)
        return x


torch.manual_seed(0)
model = Model()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for _ in range(12):
    x = torch.randn(64, 16)
    loss = (model(x) - x.sin()).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(loss.item().hex())
