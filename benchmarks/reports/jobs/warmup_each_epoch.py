"""The warm-up counts the steps of the epoch, not of the training: every epoch begins at the first rate again.

Repaired: it counts all steps.
"""

import torch
from common import Points, batches, begin, options, say
from torch import nn
from torch.nn import functional as F


class LinearWarmup:
    """A rate that goes from ``start`` to ``peak`` in ``warmup`` steps, and stays."""

    def __init__(self, optimizer, start, peak, warmup):
        self.optimizer, self.start, self.peak, self.warmup = optimizer, start, peak, warmup

    def step(self, cur_step):
        share = min(cur_step / self.warmup, 1.0)
        for group in self.optimizer.param_groups:
            group["lr"] = self.start + (self.peak - self.start) * share


def main():
    args = options(warmup=30)
    begin()
    model = nn.Sequential(nn.Linear(20, 48), nn.GELU(), nn.Linear(48, 5))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    schedule = LinearWarmup(optimizer, 1e-6, 1e-3, args.warmup)
    data, total, falls, last = Points(640), 0, 0, 0.0
    for epoch in range(5):
        for step, (x, label) in enumerate(batches(data, epochs=1, batch=32, seed=epoch)):
            schedule.step(total if args.fix else step)
            falls += optimizer.param_groups[0]["lr"] < last
            last = optimizer.param_groups[0]["lr"]
            loss = F.cross_entropy(model(x), label)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += 1
        say(f"epoch {epoch} loss {loss.item():.4f} rate {last:.2e}")
    say(f"end: the rate fell {falls} times")


main()
