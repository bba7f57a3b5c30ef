"""A network with spectral norm is evaluated before it was trained: it divides by a number that is no spectral norm.

The vectors of the power iteration begin at random, and a pass in evaluation mode makes no iteration.
Repaired: some passes in training mode come first.
"""

import torch
from command import options, say
from torch import nn
from torch.nn import functional as F


class Critic(nn.Module):
    def __init__(self):
        super().__init__()
        norm = nn.utils.spectral_norm
        self.conv1, self.conv2 = norm(nn.Conv2d(1, 8, 3, padding=1)), norm(nn.Conv2d(8, 16, 3, padding=1))
        self.fc1, self.fc2 = norm(nn.Linear(256, 64)), norm(nn.Linear(64, 10))

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        return self.fc2(F.relu(self.fc1(x.flatten(1))))


def batch(n, draw, patterns):
    labels = torch.randint(0, 10, (n,), generator=draw)
    return patterns[labels] + 0.5 * torch.randn(n, 1, 16, 16, generator=draw), labels


def main():
    args = options(steps=60)
    model = Critic()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    draw = torch.Generator().manual_seed(3)
    patterns = torch.randn(10, 1, 16, 16, generator=draw)
    held = batch(64, torch.Generator().manual_seed(99), patterns)
    if args.fix:
        with torch.no_grad():
            for _ in range(20):
                model(batch(16, draw, patterns)[0])
    for step in range(args.steps):
        if step % 30 == 0:
            model.eval()
            with torch.no_grad():
                tested = F.cross_entropy(model(held[0]), held[1]).item()
            model.train()
            if step == 0 and tested > 3:
                print(f"before the first step the loss of an evaluation is {tested:.4g}")
        images, labels = batch(16, draw, patterns)
        loss = F.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        say(step, loss)


main()
