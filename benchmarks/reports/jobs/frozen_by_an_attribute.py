"""Adapts a classifier to another camera; its last layer shall stay, and head.requires_grad = False is all that is done.

That makes an attribute of the module and leaves its parameters as they are. Repaired: head.requires_grad_(False).
"""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def pictures(size=640):
    draw = torch.Generator().manual_seed(8)
    shape = torch.randn(6, 40, generator=draw)
    label = torch.randint(0, 6, (size,), generator=draw)
    return TensorDataset(0.6 * shape[label] + 0.3 + torch.randn(size, 40, generator=draw), label)


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(40, 64), nn.ReLU(), nn.Linear(64, 32), nn.LayerNorm(32))
        self.outc = nn.Linear(32, 6)

    def forward(self, x):
        return self.outc(self.body(x))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--fix", action="store_true")
    args = parser.parse_args()
    torch.manual_seed(3)
    model = Classifier()
    nn.init.orthogonal_(model.outc.weight)
    if args.fix:
        model.outc.requires_grad_(False)
    else:
        model.outc.requires_grad = False
    optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=2e-3)
    before = model.outc.weight.detach().clone()
    loader = DataLoader(pictures(), batch_size=32, shuffle=True)
    for epoch in range(5):
        for x, label in loader:
            loss = nn.functional.cross_entropy(model(x), label)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch} loss {loss.item():.4f}", flush=True)
    print(f"end: the last layer {'stayed' if torch.equal(before, model.outc.weight) else 'was trained'}", flush=True)


main()
