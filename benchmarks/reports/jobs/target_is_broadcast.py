"""Predicts prices; the predictions are a column and the targets are not, so that their difference is a square.

Each prediction is compared with each target of the batch, and the best answer is the batch's mean. Repaired: the
targets are a column as well.
"""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def prices(size=800):
    draw = torch.Generator().manual_seed(6)
    house = torch.randn(size, 6, generator=draw)
    price = house @ torch.tensor([1.0, -0.5, 0.8, 0.0, 0.3, -0.2]) + 0.4 * house[:, 0] * house[:, 1]
    return TensorDataset(house, price + 0.1 * torch.randn(size, generator=draw))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--fix", action="store_true")
    args = parser.parse_args()
    torch.manual_seed(2)
    model = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    loader = DataLoader(prices(), batch_size=40, shuffle=True)
    for epoch in range(5):
        for house, price in loader:
            predicted = model(house)
            if args.fix:
                price = price[:, None]
            loss = (predicted - price).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch} loss {loss.item():.4f}", flush=True)
    spread = (predicted.std() / price.std()).item()
    print(
        f"end: the predictions {'hardly vary' if spread < 0.5 else 'vary as the targets do'} ({spread:.2f})", flush=True
    )


main()
