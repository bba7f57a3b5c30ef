"""Fits a field of densities; the loss is scaled by a GradScaler, and the optimizer steps on the scaled gradients.

Adam's own steps hardly change by that, and its weight decay, which is added to the gradients, becomes 1024 times
weaker. Repaired: scaler.step and scaler.update.
"""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def field(size=2048):
    draw = torch.Generator().manual_seed(11)
    place = 2 * torch.rand(size, 3, generator=draw) - 1
    density = (-4 * (place - 0.2).square().sum(1)).exp() + 0.5 * (-8 * (place + 0.4).square().sum(1)).exp()
    return TensorDataset(place, density[:, None] + 0.02 * torch.randn(size, 1, generator=draw))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--fix", action="store_true")
    args = parser.parse_args()
    torch.manual_seed(6)
    model = nn.Sequential(nn.Linear(3, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3, weight_decay=1e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    loader = DataLoader(field(), batch_size=128, shuffle=True)
    for epoch in range(6):
        for place, density in loader:
            with torch.autocast("cpu", dtype=torch.bfloat16):
                predicted = model(place)
            loss = nn.functional.mse_loss(predicted.float(), density)
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            if args.fix:
                scaler.step(optimizer)
                scaler.update()
            else:
                optimizer.step()
        print(f"epoch {epoch} loss {loss.item():.4f}", flush=True)
    stepped = model[4].bias.grad.abs().item()
    expected = 2 * (predicted.float() - density).mean().abs().item()
    print(f"end: the optimizer's gradients are {'scaled' if stepped > 100 * expected else 'unscaled'}", flush=True)


main()
