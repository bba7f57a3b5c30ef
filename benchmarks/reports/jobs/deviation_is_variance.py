"""Trains a variational autoencoder; the noise of its code is multiplied with the variance.

exp(logvar) is the variance, and the deviation is exp(logvar / 2). Repaired: the half is there.
"""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def pictures(size=1024):
    draw = torch.Generator().manual_seed(35)
    code = torch.randn(size, 3, generator=draw)
    return TensorDataset(
        torch.tanh(code @ torch.randn(3, 40, generator=draw)) + 0.1 * torch.randn(size, 40, generator=draw)
    )


class Autoencoder(nn.Module):
    def __init__(self, half):
        super().__init__()
        self.half = half
        self.encoder = nn.Sequential(nn.Linear(40, 64), nn.ReLU(), nn.Linear(64, 12))
        self.decoder = nn.Sequential(nn.Linear(6, 64), nn.ReLU(), nn.Linear(64, 40))

    def reparametrise(self, mean, logvar):
        noise = torch.randn_like(mean)
        return mean + noise * (0.5 * logvar if self.half else logvar).exp()

    def forward(self, x):
        mean, logvar = self.encoder(x).chunk(2, dim=1)
        return self.decoder(self.reparametrise(mean, logvar)), mean, logvar


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--fix", action="store_true")
    args = parser.parse_args()
    torch.manual_seed(27)
    model = Autoencoder(half=args.fix)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    loader = DataLoader(pictures(), batch_size=64, shuffle=True)
    for epoch in range(7):
        for (x,) in loader:
            again, mean, logvar = model(x)
            divergence = -0.5 * (1 + logvar - mean.square() - logvar.exp()).sum(1).mean()
            loss = 10 * (again - x).square().sum(1).mean() / 2 + divergence
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch} loss {loss.item():.4f} divergence {divergence.item():.3f}", flush=True)
    with torch.no_grad():
        mean, logvar = model.encoder(x[:1]).chunk(2, dim=1)
        drawn = torch.stack([model.reparametrise(mean, logvar) for _ in range(2000)]).std(0)
        narrow = logvar.argmin()
        times = (drawn[0, narrow] / (0.5 * logvar[0, narrow]).exp()).item()
    print(
        f"end: codes spread {'as' if 0.9 < times < 1.1 else 'not as'} their deviation says ({times:.2f} times)",
        flush=True,
    )


main()
