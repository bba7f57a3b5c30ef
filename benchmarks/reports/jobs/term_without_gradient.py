"""A model returns learned weights for a term that keeps them smooth; a detach for a plot cuts that term off.

The term is added to the loss with whatever factor, and nothing depends on it. Repaired: the weights are not detached.
"""

import torch
from common import Pictures, batches, begin, options, say
from torch import nn
from torch.nn import functional as F


class Cage(nn.Module):
    """Moves a picture by a grid [6, 6] of offsets, each of a learned weight."""

    def __init__(self, detached):
        super().__init__()
        self.detached = detached
        self.encoder = nn.Sequential(nn.Flatten(), nn.Linear(144, 64), nn.GELU())
        self.weights, self.offsets = nn.Linear(64, 36), nn.Linear(64, 36)

    def forward(self, picture):
        hidden = self.encoder(picture)
        weights = self.weights(hidden).softmax(-1)
        grid = (weights * self.offsets(hidden)).view(-1, 1, 6, 6)
        deformed = picture + F.interpolate(grid, size=(12, 12), mode="bilinear")
        if self.detached:
            weights = weights.detach()
        return deformed, weights


def main():
    args = options(smooth=50.0)
    begin()
    model = Cage(detached=not args.fix)
    data = Pictures(640, noise=0.3)
    wanted = Pictures(640, noise=0.0).pictures.flip(-1)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    for step, (picture, label) in enumerate(batches(data, epochs=2, batch=16)):
        deformed, weights = model(picture)
        fit = F.mse_loss(deformed, wanted[label])
        smooth = weights.view(-1, 6, 6).diff(dim=1).square().sum((1, 2)).mean()
        loss = fit + args.smooth * smooth
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 20 == 0:
            say(f"step {step} loss {loss.item():.4f} fit {fit.item():.4f} smooth {smooth.item():.5f}")
    say(f"end: the term {'has a graph' if smooth.requires_grad else 'has no graph'}")


main()
