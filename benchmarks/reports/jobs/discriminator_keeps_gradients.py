"""Trains a GAN; the discriminator's gradients are cleared after its own update only.

The generator's backward pass leaves gradients in the discriminator, by which it is asked to take fakes for real, and
they are in its next update. Repaired: they are cleared before its own backward pass.
"""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def rings(size=1600):
    draw = torch.Generator().manual_seed(20)
    angle, radius = 6.28 * torch.rand(size, generator=draw), 1 + 0.1 * torch.randn(size, generator=draw)
    return TensorDataset(torch.stack([radius * angle.cos(), radius * angle.sin()], dim=1))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--fix", action="store_true")
    args = parser.parse_args()
    torch.manual_seed(16)
    generator = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2))
    critic = nn.Sequential(nn.Linear(2, 64), nn.LeakyReLU(0.2), nn.Linear(64, 64), nn.LeakyReLU(0.2), nn.Linear(64, 1))
    optimizer_g = torch.optim.Adam(generator.parameters(), lr=1e-3, betas=(0.5, 0.99))
    optimizer_d = torch.optim.Adam(critic.parameters(), lr=1e-3, betas=(0.5, 0.99))
    judge = nn.functional.binary_cross_entropy_with_logits
    loader = DataLoader(rings(), batch_size=64, shuffle=True)
    for epoch in range(4):
        for (real,) in loader:
            fake = generator(torch.randn(len(real), 8))
            verdict = critic(fake)
            loss_g = judge(verdict, torch.ones_like(verdict))
            optimizer_g.zero_grad()
            loss_g.backward()
            optimizer_g.step()

            if args.fix:
                optimizer_d.zero_grad()
            left = sum(p.grad.norm().item() for p in critic.parameters() if p.grad is not None)
            on_real, on_fake = critic(real), critic(fake.detach())
            loss_d = (judge(on_real, torch.ones_like(on_real)) + judge(on_fake, torch.zeros_like(on_fake))) / 2
            loss_d.backward()
            optimizer_d.step()
            optimizer_d.zero_grad()
        print(f"epoch {epoch} generator {loss_g.item():.4f} discriminator {loss_d.item():.4f}", flush=True)
    print(f"end: the discriminator {'had' if left else 'had no'} gradients before its own backward pass", flush=True)


main()
