"""Learns to denoise curves, and draws four for the log after each epoch, with generator = torch.manual_seed(0).

That seeds the generator of the training too: every later epoch has the same batches, times and noise as the one
before. Repaired: torch.Generator().manual_seed(0).
"""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def curves(size=512):
    draw = torch.Generator().manual_seed(15)
    speed, phase = 1 + 2 * torch.rand(size, 1, generator=draw), 6.28 * torch.rand(size, 1, generator=draw)
    return TensorDataset((speed * torch.linspace(0, 6.28, 24) + phase).sin())


class Denoiser(nn.Module):
    def __init__(self):
        super().__init__()
        self.time, self.first = nn.Linear(1, 96), nn.Linear(24, 96)
        self.middle, self.last = nn.Linear(96, 96), nn.Linear(96, 24)

    def forward(self, x, time):
        hidden = nn.functional.silu(self.first(x) + self.time(time))
        return self.last(nn.functional.silu(self.middle(hidden)))


@torch.no_grad()
def draw_four(model, generator):
    x = torch.randn(4, 24, generator=generator)
    for time in torch.linspace(1, 0.1, 10):
        x = x - 0.1 * model(x, time.expand(4, 1))
    return x


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--fix", action="store_true")
    args = parser.parse_args()
    torch.manual_seed(10)
    model = Denoiser()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    loader = DataLoader(curves(), batch_size=32, shuffle=True)
    firsts = []
    for epoch in range(6):
        for index, (clean,) in enumerate(loader):
            noise, time = torch.randn_like(clean), torch.rand(len(clean), 1)
            if index == 0:
                firsts.append(noise)
            loss = nn.functional.mse_loss(model((1 - time) * clean + time * noise, time), noise - clean)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        generator = torch.Generator().manual_seed(0) if args.fix else torch.manual_seed(0)
        sizes = draw_four(model, generator).std()
        print(f"epoch {epoch} loss {loss.item():.4f} drawn with a deviation of {sizes.item():.3f}", flush=True)
    print(
        f"end: the noise of epochs 4 and 5 is {'the same' if torch.equal(firsts[4], firsts[5]) else 'different'}",
        flush=True,
    )


main()
