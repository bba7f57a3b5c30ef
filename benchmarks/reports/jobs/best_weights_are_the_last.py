"""Predicts a series and keeps the weights of the best epoch, as state_dict() gives them: references, not copies.

What is restored at the end is what the weights have become. Repaired: the dictionary is copied.
"""

import argparse
import copy

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def series(size, seed):
    draw = torch.Generator().manual_seed(seed)
    phase, speed = 6.28 * torch.rand(size, 1, generator=draw), 0.2 + 0.4 * torch.rand(size, 1, generator=draw)
    wave = (phase + speed * torch.arange(25)).sin() + 0.2 * torch.randn(size, 25, generator=draw)
    return TensorDataset(wave[:, :24], wave[:, 24:])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--fix", action="store_true")
    args = parser.parse_args()
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(24, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    loader = DataLoader(series(320, 2), batch_size=32, shuffle=True)
    held, target = series(256, 3).tensors
    best = float("inf")
    for epoch in range(12):
        model.train()
        for x, y in loader:
            loss = nn.functional.mse_loss(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        model.eval()
        with torch.no_grad():
            score = nn.functional.mse_loss(model(held), target).item()
        if score < best:
            best = score
            kept = copy.deepcopy(model.state_dict()) if args.fix else model.state_dict()
        print(f"epoch {epoch} loss {loss.item():.4f} held out {score:.4f} best {best:.4f}", flush=True)
    model.load_state_dict(kept)
    with torch.no_grad():
        score = nn.functional.mse_loss(model(held), target).item()
    print(f"end: what was restored {'is' if abs(score - best) < 1e-6 else 'is not'} the best ({score:.4f})", flush=True)


main()
