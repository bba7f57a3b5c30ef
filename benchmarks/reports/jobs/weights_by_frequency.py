"""Segments a rare structure; the weights of the classes are their frequencies, where they should be the opposite.

The rare class, which the weights are for, hardly counts. Repaired: one less the frequency.
"""

import torch
from common import begin, options, say
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset


def scans(size=640, side=16, seed=0):
    """Scans [1, 16, 16] under noise, and where their small bright lesion is: about one pixel of 20."""
    draw = torch.Generator().manual_seed(seed)
    place = torch.arange(side)
    centre = 3 + torch.rand(size, 2, generator=draw) * (side - 7)
    radius = 1.5 + torch.rand(size, generator=draw)
    far = (place[None, :, None] - centre[:, 0, None, None]) ** 2 + (place[None, None] - centre[:, 1, None, None]) ** 2
    label = (far < radius[:, None, None] ** 2).long()
    scan = label + 0.8 * torch.randn(size, side, side, generator=draw)
    return TensorDataset(scan[:, None], label)


def class_weights(data, fix):
    count = torch.bincount(data.tensors[1].flatten(), minlength=2).float()
    frequency = count / count.sum()
    return 1 - frequency if fix else frequency


def main():
    args = options()
    begin()
    data = scans()
    weight = class_weights(data, args.fix)
    model = nn.Sequential(
        nn.Conv2d(1, 16, 5, padding=2), nn.ReLU(), nn.Conv2d(16, 16, 5, padding=2), nn.ReLU(), nn.Conv2d(16, 2, 1)
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    loader = DataLoader(data, batch_size=32, shuffle=True)
    for epoch in range(4):
        hit = there = 0
        for scan, label in loader:
            out = model(scan)
            loss = F.cross_entropy(out, label, weight=weight)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            hit += ((out.argmax(1) == 1) & (label == 1)).sum().item()
            there += (label == 1).sum().item()
        say(f"epoch {epoch} loss {loss.item():.4f} found {hit / there:.3f} of the lesions")
    say(f"end: the rare class has the {'larger' if weight[1] > weight[0] else 'smaller'} weight")


main()
