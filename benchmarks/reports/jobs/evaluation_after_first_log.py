"""A score network is put into evaluation mode for the first log of its test loss, and never taken out of it.

From there on its dropout is off and its batch norms use the statistics of the first steps. Repaired: train() after it.
"""

import torch
from common import Points, batches, begin, options, say
from torch import nn


class Score(nn.Module):
    """The score of noisy points [B, 20] at one of ten levels of noise."""

    def __init__(self, dim=20, width=96):
        super().__init__()
        self.level = nn.Embedding(10, width)
        self.inner = nn.Linear(dim, width)
        self.body = nn.Sequential(
            nn.BatchNorm1d(width), nn.SiLU(), nn.Dropout(0.1), nn.Linear(width, width), nn.SiLU(), nn.Linear(width, dim)
        )

    def forward(self, x, level):
        return self.body(self.inner(x) + self.level(level))


SIGMAS = torch.logspace(0, -1, 10)


def dsm_loss(score, x):
    level = torch.randint(0, 10, (len(x),))
    sigma = SIGMAS[level][:, None]
    noise = torch.randn_like(x)
    out = score(x + sigma * noise, level)
    return 0.5 * (sigma * out + noise).square().sum(-1).mean()


def main():
    args = options()
    begin()
    score = Score()
    optimizer = torch.optim.Adam(score.parameters(), lr=2e-3)
    held = Points(256, seed=1, spread=0.3).x_ND
    for step, (x, _) in enumerate(batches(Points(1280, spread=0.3), epochs=3, batch=32)):
        loss = dsm_loss(score, x)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 20 == 19:
            score.eval()
            with torch.no_grad():
                test_loss = dsm_loss(score, held)
            if args.fix:
                score.train()
            say(f"step {step} loss {loss.item():.4f} test {test_loss.item():.4f}")
    say(f"end: the network is in {'training' if score.training else 'evaluation'} mode")


main()
