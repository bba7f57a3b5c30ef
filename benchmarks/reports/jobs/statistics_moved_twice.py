"""Classifies textures, with checkpointed blocks that have batch norms: each forward pass is done twice.

The second one, in the backward pass, moves the running statistics again. Repaired: the blocks are not checkpointed.
"""

import argparse

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset


def textures(size=512):
    draw = torch.Generator().manual_seed(9)
    label = torch.randint(0, 4, (size,), generator=draw)
    row = torch.arange(12).float()
    angle = 0.785 * label[:, None, None] + 0.1 * torch.randn(size, 1, 1, generator=draw)
    wave = (
        1.5 * (angle.cos() * row[:, None] + angle.sin() * row) + 6.28 * torch.rand(size, 1, 1, generator=draw)
    ).sin()
    return TensorDataset((wave + 1.5 * torch.randn(size, 12, 12, generator=draw))[:, None], label)


def block(inside, outside):
    return nn.Sequential(nn.Conv2d(inside, outside, 3, padding=1, bias=False), nn.BatchNorm2d(outside), nn.ReLU())


class Classifier(nn.Module):
    def __init__(self, checkpointed):
        super().__init__()
        self.checkpointed = checkpointed
        self.stem, self.blocks = nn.Conv2d(1, 12, 3, padding=1), nn.ModuleList([block(12, 12), block(12, 16)])
        self.out = nn.Linear(16, 4)

    def forward(self, x):
        x = self.stem(x)
        for part in self.blocks:
            x = checkpoint(part, x, use_reentrant=False) if self.checkpointed and self.training else part(x)
        return self.out(x.mean((2, 3)))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--fix", action="store_true")
    args = parser.parse_args()
    torch.manual_seed(4)
    model = Classifier(checkpointed=not args.fix)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    loader = DataLoader(textures(), batch_size=32, shuffle=True)
    steps = 0
    for epoch in range(5):
        for x, label in loader:
            loss = nn.functional.cross_entropy(model(x), label)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            steps += 1
        print(f"epoch {epoch} loss {loss.item():.4f}", flush=True)
    tracked = model.blocks[0][1].num_batches_tracked.item()
    print(f"end: {steps} steps moved the running statistics {tracked} times", flush=True)


main()
