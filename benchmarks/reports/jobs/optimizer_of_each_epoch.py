"""Interpolates temperatures, with a function that trains an epoch and makes its own Adam.

Momentum, second moments and the count of steps begin anew with every epoch. Repaired: there is one Adam.
"""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def stations(size=512):
    draw = torch.Generator().manual_seed(34)
    place = 2 * torch.rand(size, 3, generator=draw) - 1
    warmth = 15 * (2 * place[:, :1]).cos() - 4 * place[:, 1:2] + 3 * (6 * place[:, 2:]).sin()
    return TensorDataset(place, (warmth + torch.randn(size, 1, generator=draw)) / 8)


def train_epoch(model, loader, rate, optimizer=None):
    optimizer = optimizer or torch.optim.Adam(model.parameters(), lr=rate)
    for place, warmth in loader:
        loss = nn.functional.mse_loss(model(place), warmth)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return loss.item(), optimizer


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--fix", action="store_true")
    args = parser.parse_args()
    torch.manual_seed(26)
    model = nn.Sequential(nn.Linear(3, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1))
    loader = DataLoader(stations(), batch_size=32, shuffle=True)
    optimizer = None
    for epoch in range(7):
        loss, used = train_epoch(model, loader, 3e-3, optimizer)
        optimizer = used if args.fix else None
        print(f"epoch {epoch} loss {loss:.4f}", flush=True)
    steps = int(used.state[used.param_groups[0]["params"][0]]["step"])
    print(f"end: Adam has counted {steps} of {7 * len(loader)} steps", flush=True)


main()
