"""Each worker of the loader seeds numpy with a number of its own, the same in every epoch: augmentations come again.

A sample that keeps its place is augmented alike in all epochs. Repaired: a seed of torch's, which differs by epoch.
"""

import numpy as np
import torch
from common import Convolutions, Pictures, begin, options, say
from torch.nn import functional as F
from torch.utils.data import DataLoader

ARGS = options()


def worker_init(worker):
    np.random.seed(torch.initial_seed() % 2**32 if ARGS.fix else 42 + worker)


def augmented(picture):
    """Moved, and made lighter or darker, by numbers of numpy."""
    moved = torch.roll(picture, (np.random.randint(-2, 3), np.random.randint(-2, 3)), dims=(-2, -1))
    return moved * np.random.uniform(0.7, 1.3)


def main():
    begin()
    data = Pictures(480, transform=augmented)
    loader = DataLoader(data, batch_size=20, num_workers=2, worker_init_fn=worker_init)
    model = Convolutions()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    begins = []
    for epoch in range(4):
        for batch, (x, label) in enumerate(loader):
            if batch == 0:
                begins.append(x.float())
            loss = F.cross_entropy(model(x.float()), label)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        say(f"epoch {epoch} loss {loss.item():.4f}")
    say(f"end: epochs begin {'alike' if torch.equal(begins[1], begins[2]) else 'unlike'}")


main()
