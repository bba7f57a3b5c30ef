"""The gradients of all steps so far are added up: nobody sets them to zero.

Repaired: optimizer.zero_grad() in each step.
"""

import torch
from command import options, say
from torch import nn


class Images(torch.utils.data.Dataset):
    """Digits of a kind: a smooth pattern a class, and noise."""

    def __init__(self, n=1024, classes=10):
        draw = torch.Generator().manual_seed(7)
        patterns = nn.functional.interpolate(torch.randn(classes, 1, 4, 4, generator=draw), size=(16, 16))
        self.labels = torch.randint(0, classes, (n,), generator=draw)
        self.images = patterns[self.labels] + torch.randn(n, 1, 16, 16, generator=draw)

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, i):
        return self.images[i], self.labels[i]


def main():
    args = options(steps=80)
    model = nn.Sequential(
        nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Conv2d(8, 16, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(576, 10)
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    loader = torch.utils.data.DataLoader(Images(), 30, shuffle=True)
    step, last = 0, None
    while step < args.steps:
        for images, labels in loader:
            loss = nn.functional.cross_entropy(model(images), labels)
            if args.fix:
                optimizer.zero_grad()
            last = None if model[0].weight.grad is None else model[0].weight.grad.clone()
            loss.backward()
            optimizer.step()
            say(step, loss)
            step += 1
            if step == args.steps:
                break
    if last is not None and last.norm():
        print(f"before the last backward the gradient had the norm {last.norm().item():.3f}")


main()
