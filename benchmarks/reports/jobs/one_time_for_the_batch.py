"""Flow matching that draws one time for a whole batch, and gives it to every sample.

Repaired: a time for each sample.
"""

import random

import torch
from common import Points, batches, begin, options, say
from torch import nn
from torch.nn import functional as F


class Velocity(nn.Module):
    def __init__(self, dim=20):
        super().__init__()
        self.time = nn.Sequential(nn.Linear(16, 32), nn.SiLU(), nn.Linear(32, 64))
        self.inner, self.outer = (
            nn.Linear(dim, 64),
            nn.Sequential(nn.SiLU(), nn.Linear(64, 64), nn.SiLU(), nn.Linear(64, dim)),
        )

    def forward(self, x, t):
        angle = t[:, None] * torch.exp2(torch.arange(8.0))
        return self.outer(self.inner(x) + self.time(torch.cat((angle.sin(), angle.cos()), -1)))


def main():
    args = options()
    begin()
    random.seed(0)
    timesteps = torch.linspace(0.001, 0.999, 1000)
    model = Velocity()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.01)
    for step, (x, _) in enumerate(batches(Points(1280, spread=0.3), epochs=3, batch=32)):
        noise = torch.randn_like(x)
        if args.fix:
            t = timesteps[torch.randint(0, 1000, (len(x),))]
        else:
            t = timesteps[random.randint(0, 999)].expand(len(x))
        mixed = (1 - t[:, None]) * x + t[:, None] * noise
        loss = F.mse_loss(model(mixed, t), noise - x)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()
        if step % 20 == 0:
            say(f"step {step} loss {loss.item():.4f}")
    say(f"end: {len(t.unique())} different times in the last batch")


main()
