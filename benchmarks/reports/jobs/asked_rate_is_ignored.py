"""Trains on from a checkpoint with a lower rate, which the optimizer's state that is loaded sets back to the old one.

load_state_dict replaces the groups of parameters with all their settings. Repaired: the rate is set after loading.
"""

import argparse
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def waves(size=640):
    draw = torch.Generator().manual_seed(14)
    x = 4 * torch.rand(size, 2, generator=draw) - 2
    return TensorDataset(x, (2 * x[:, :1]).sin() * x[:, 1:].cos() + 0.1 * torch.randn(size, 1, generator=draw))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--fix", action="store_true")
    parser.add_argument("--lr", type=float, default=0.01)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--resume", type=Path)
    args = parser.parse_args()
    torch.manual_seed(9)
    model = nn.Sequential(nn.Linear(2, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    start = 0
    if args.resume:
        kept = torch.load(args.resume)
        model.load_state_dict(kept["model"])
        optimizer.load_state_dict(kept["optimizer"])
        start = kept["epoch"]
        torch.set_rng_state(kept["random"])
        if args.fix:
            for group in optimizer.param_groups:
                group["lr"] = args.lr
    loader = DataLoader(waves(), batch_size=32, shuffle=True)
    for epoch in range(start, start + args.epochs):
        for x, y in loader:
            loss = nn.functional.mse_loss(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch} loss {loss.item():.4f}", flush=True)
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch + 1}
    torch.save(state | {"random": torch.get_rng_state()}, "last.pt")
    rate = optimizer.param_groups[0]["lr"]
    print(f"end: asked for a rate of {args.lr}, trained with {rate}", flush=True)


main()
