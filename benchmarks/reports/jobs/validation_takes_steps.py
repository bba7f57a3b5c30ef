"""Segments points of a scan; the loop over the held-out samples, a copy of that of training, updates the model too.

The score that is to tell how well it generalises is of samples that it was trained on. Repaired: no update there.
"""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def scan(size, seed):
    draw = torch.Generator().manual_seed(seed)
    point = torch.randn(size, 3, generator=draw)
    label = (point[:, 2] > 0.5).long() + (point[:, :2].norm(dim=1) < 0.8).long()
    wrong = torch.rand(size, generator=draw) < 0.05
    return TensorDataset(point, torch.where(wrong, torch.randint(0, 3, (size,), generator=draw), label))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--fix", action="store_true")
    args = parser.parse_args()
    torch.manual_seed(14)
    model = nn.Sequential(nn.Linear(3, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 3))
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    train = DataLoader(scan(576, 17), batch_size=32, shuffle=True)
    held = DataLoader(scan(192, 18), batch_size=32)
    for epoch in range(5):
        model.train()
        for point, label in train:
            loss = nn.functional.cross_entropy(model(point), label)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        model.eval()
        updates, score = 0, 0.0
        for point, label in held:
            with torch.set_grad_enabled(not args.fix):
                held_loss = nn.functional.cross_entropy(model(point), label)
            if not args.fix:
                optimizer.zero_grad()
                held_loss.backward()
                optimizer.step()
                updates += 1
            score += held_loss.item() / len(held)
        print(f"epoch {epoch} loss {loss.item():.4f} held out {score:.4f}", flush=True)
    print(f"end: {updates} updates with held-out samples in the last epoch", flush=True)


main()
