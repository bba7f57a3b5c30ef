"""Training and validation are subsets of one dataset: the validation's transform takes the augmentation from training.

Every epoch sees the same pictures, bit for bit. Repaired: each subset has a dataset of its own.
"""

import copy

import torch
from common import Convolutions, Pictures, begin, options, say
from torch.nn import functional as F
from torch.utils.data import DataLoader, random_split


def augmented(picture):
    """Moved by up to two places, mirrored half of the time."""
    moved = torch.roll(picture, tuple(torch.randint(-2, 3, (2,)).tolist()), dims=(-2, -1))
    return moved.flip(-1) if torch.rand(()) < 0.5 else moved


def plain(picture):
    return picture


def main():
    args = options()
    begin()
    whole = Pictures(720)
    train, val = random_split(whole, [600, 120], generator=torch.Generator().manual_seed(1))
    if args.fix:
        val.dataset = copy.copy(whole)
    train.dataset.transform = augmented
    val.dataset.transform = plain
    loader = DataLoader(train, batch_size=20, shuffle=True, generator=torch.Generator().manual_seed(2))
    model = Convolutions()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4)
    for epoch in range(3):
        model.train()
        for x, label in loader:
            loss = F.cross_entropy(model(x), label)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        model.eval()
        with torch.no_grad():
            right = sum((model(x).argmax(-1) == y).sum().item() for x, y in DataLoader(val, batch_size=40))
        say(f"epoch {epoch} loss {loss.item():.4f} validation {right / len(val):.3f}")
    say(f"end: a training picture comes {'unchanged' if torch.equal(train[0][0], train[0][0]) else 'changed'}")


main()
