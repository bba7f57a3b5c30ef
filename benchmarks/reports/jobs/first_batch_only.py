"""A loop of iterations takes next(iter(loader)) from a loader that does not shuffle: each time the first batch.

Repaired: one iterator, made again when it is at its end.
"""

import torch
from common import Pictures, begin, options, say
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader


class Counting(Pictures):
    def __init__(self, size):
        super().__init__(size)
        self.read = set()

    def __getitem__(self, place):
        self.read.add(place)
        return super().__getitem__(place)


def main():
    args = options(iterations=90)
    begin()
    data = Counting(512)
    loader = DataLoader(data, batch_size=16)
    model = nn.Sequential(nn.Flatten(), nn.Linear(144, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    iterator = iter(loader)
    for iteration in range(args.iterations):
        if args.fix:
            try:
                x, label = next(iterator)
            except StopIteration:
                iterator = iter(loader)
                x, label = next(iterator)
        else:
            x, label = next(iter(loader))
        loss = F.cross_entropy(model(x), label)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if iteration % 20 == 0:
            say(f"iteration {iteration} loss {loss.item():.4f}")
    say(f"end: {len(data.read)} different samples were read")


main()
