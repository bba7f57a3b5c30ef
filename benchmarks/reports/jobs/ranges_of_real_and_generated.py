"""A GAN whose generator ends with a tanh; the real pictures are of [0, 1] and the generated ones of [-1, 1].

The discriminator knows them by their range. Repaired: the real pictures are normalised to [-1, 1].
"""

import torch
from common import begin, options, say
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset


class Faces(Dataset):
    """Pictures [1, 12, 12] of smooth blobs, with values of 0 to 1."""

    def __init__(self, size=1280, normalize=False, seed=0):
        draw = torch.Generator().manual_seed(seed)
        place = torch.arange(12.0)
        centre = 4 + 3 * torch.rand(size, 2, 1, generator=draw)
        width = 1.5 + torch.rand(size, 1, 1, generator=draw)
        across, down = (-0.5 * ((place - centre) / width).square()).exp().unbind(1)
        pictures = down[:, :, None] * across[:, None, :] + 0.05 * torch.rand(size, 12, 12, generator=draw)
        self.pictures = pictures.clamp(0, 1)[:, None]
        self.normalize = normalize

    def __len__(self):
        return len(self.pictures)

    def __getitem__(self, place):
        picture = self.pictures[place]
        return (picture - 0.5) / 0.5 if self.normalize else picture


def generator(latent=16):
    return nn.Sequential(
        nn.Linear(latent, 24 * 9), nn.BatchNorm1d(24 * 9), nn.ReLU(), nn.Unflatten(1, (24, 3, 3)),
        nn.ConvTranspose2d(24, 16, 4, stride=2, padding=1), nn.BatchNorm2d(16), nn.ReLU(),
        nn.ConvTranspose2d(16, 1, 4, stride=2, padding=1), nn.Tanh(),
    )  # fmt: skip


def discriminator():
    return nn.Sequential(
        nn.Conv2d(1, 16, 4, stride=2, padding=1), nn.LeakyReLU(0.2),
        nn.Conv2d(16, 32, 4, stride=2, padding=1), nn.LeakyReLU(0.2), nn.Flatten(), nn.Linear(32 * 9, 1),
    )  # fmt: skip


def main():
    args = options()
    begin()
    net_g, net_d = generator(), discriminator()
    optimizer_g = torch.optim.Adam(net_g.parameters(), lr=1e-3, betas=(0.5, 0.9))
    optimizer_d = torch.optim.Adam(net_d.parameters(), lr=5e-4, betas=(0.5, 0.9))
    loader = DataLoader(Faces(normalize=args.fix), batch_size=32, shuffle=True)
    step = 0
    for _ in range(3):
        for real in loader:
            fake = net_g(torch.randn(len(real), 16))
            loss_d = F.relu(1 - net_d(real)).mean() + F.relu(1 + net_d(fake.detach())).mean()
            optimizer_d.zero_grad()
            loss_d.backward()
            optimizer_d.step()
            loss_g = -net_d(fake).mean()
            optimizer_g.zero_grad()
            loss_g.backward()
            optimizer_g.step()
            if step % 20 == 0:
                say(f"step {step} discriminator {loss_d.item():.4f} generator {loss_g.item():.4f}")
            step += 1
    low = real.amin().item()
    say(f"end: real pictures {'are never below zero' if low >= 0 else 'go below zero'}, generated ones may be")


main()
