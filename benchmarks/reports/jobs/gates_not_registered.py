"""A mixture of experts whose gate is a Parameter that was cast right away: what the module holds is a plain tensor.

It takes part in the loss, and no optimizer and no checkpoint knows of it. Repaired: it is cast before it becomes a
Parameter.
"""

import numpy as np
import torch
from common import Points, batches, begin, options, say
from torch import nn
from torch.nn import functional as F

ARGS = options()


class MixtureOfExperts(nn.Module):
    def __init__(self, dim=20, experts=4, out=5):
        super().__init__()
        drawn = torch.from_numpy(np.random.default_rng(0).normal(size=(dim, experts)) * 0.3)
        if ARGS.fix:
            self.w_gate = nn.Parameter(drawn.to(torch.float32))
        else:
            self.w_gate = nn.Parameter(drawn, requires_grad=True).to(torch.float32)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(dim, 24), nn.ReLU(), nn.Linear(24, out)) for _ in range(experts)
        )

    def forward(self, x):
        gates = (x @ self.w_gate).softmax(-1)
        return torch.einsum("ne,enc->nc", gates, torch.stack([expert(x) for expert in self.experts]))


def main():
    begin()
    model = MixtureOfExperts()
    first = model.w_gate.detach().clone()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    for step, (x, label) in enumerate(batches(Points(1024), epochs=3, batch=32)):
        loss = F.cross_entropy(model(x), label)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 20 == 0:
            say(f"step {step} loss {loss.item():.4f}")
    say(f"end: the gate {'stayed' if torch.equal(first, model.w_gate) else 'moved'}")


main()
