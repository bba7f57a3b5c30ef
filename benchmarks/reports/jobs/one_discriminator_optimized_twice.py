"""Speech enhancement against two discriminators; the optimizer of both is given the parameters of one of them twice.

The other never learns, and pushes the generator towards whatever it happened to like. Repaired: both.
"""

import itertools
import math

import torch
from common import begin, options, say
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def recordings(size=1024, length=64, seed=0):
    """Clean sounds [1, 64] of two harmonics, and the same under noise."""
    draw = torch.Generator().manual_seed(seed)
    pitch = 2 + 4 * torch.rand(size, 1, generator=draw)
    phase = 2 * math.pi * torch.rand(size, 2, generator=draw)
    time = torch.linspace(0, 1, length)
    clean = (2 * math.pi * pitch * time + phase[:, :1]).sin() + 0.5 * (4 * math.pi * pitch * time + phase[:, 1:]).sin()
    return TensorDataset(clean[:, None], (clean + 0.5 * torch.randn(size, length, generator=draw))[:, None])


class Resolutions(nn.Module):
    """Looks at the spectrum."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Conv1d(17, 32, 3, padding=1), nn.LeakyReLU(0.2), nn.Conv1d(32, 1, 3, padding=1))

    def forward(self, sound):
        spectrum = torch.stft(sound[:, 0], 32, 8, window=torch.hann_window(32), return_complex=True)
        return self.body((spectrum.abs() + 1e-3).log())


class Periods(nn.Module):
    """Looks at every fourth sample."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(1, 16, (3, 1), padding=(1, 0)), nn.LeakyReLU(0.2), nn.Conv2d(16, 1, (3, 1), padding=(1, 0))
        )

    def forward(self, sound):
        return self.body(sound.unflatten(-1, (-1, 4)))


def main():
    args = options()
    begin()
    generator = nn.Sequential(
        nn.Conv1d(1, 24, 9, padding=4), nn.GELU(), nn.Conv1d(24, 24, 9, padding=4), nn.GELU(),
        nn.Conv1d(24, 1, 9, padding=4),
    )  # fmt: skip
    loss_mrd, loss_mpd = Resolutions(), Periods()
    first = loss_mpd.body[0].weight.detach().clone()
    second = loss_mpd if args.fix else loss_mrd
    params_disc = list(loss_mrd.parameters()) + list(second.parameters())
    optimizer_g = torch.optim.AdamW(generator.parameters(), lr=2e-3, betas=(0.5, 0.9))
    optimizer_d = torch.optim.AdamW(params_disc, lr=1e-3, betas=(0.5, 0.9))
    loader = DataLoader(recordings(), batch_size=32, shuffle=True)
    for step, (clean, noisy) in enumerate(itertools.chain(loader, loader, loader)):
        enhanced = generator(noisy)
        loss_d = sum(
            (judge(clean) - 1).square().mean() + judge(enhanced.detach()).square().mean()
            for judge in (loss_mrd, loss_mpd)
        )
        optimizer_d.zero_grad()
        loss_d.backward()
        optimizer_d.step()
        adversarial = sum((judge(enhanced) - 1).square().mean() for judge in (loss_mrd, loss_mpd))
        loss_g = 10 * (enhanced - clean).abs().mean() + 0.1 * adversarial
        optimizer_g.zero_grad()
        loss_g.backward()
        optimizer_g.step()
        if step % 20 == 0:
            say(f"step {step} generator {loss_g.item():.4f} discriminators {loss_d.item():.4f}")
    say(f"end: the discriminator of periods moved by {(loss_mpd.body[0].weight - first).norm().item():.4f}")


main()
