"""A variational model of event sequences sums its divergence over the whole batch, and then over its steps again.

The sum has no dim, and multiplying that scalar by the mask of the steps raises nothing: each step of each sequence is
charged with all of the batch. Repaired: a sum over the code alone.
"""

import torch
from common import begin, options, say
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def events(size=1024, length=12, seed=0):
    """Logarithms of intervals [N, 12] with a rhythm of two paces, and which steps are not padding [N, 12]."""
    draw = torch.Generator().manual_seed(seed)
    state = torch.randint(0, 2, (size, 1), generator=draw)
    flips = (torch.rand(size, length, generator=draw) < 0.15).long().cumsum(1)
    interval = 2.0 * ((state + flips) % 2) - 1 + 0.3 * torch.randn(size, length, generator=draw)
    used = torch.randint(6, length + 1, (size, 1), generator=draw)
    return TensorDataset(interval, (torch.arange(length) < used).float())


class Events(nn.Module):
    def __init__(self, fix, hidden=32, latent=8):
        super().__init__()
        self.fix = fix
        self.history = nn.GRU(1, hidden, batch_first=True)
        self.encoder = nn.Sequential(nn.Linear(hidden + 1, 32), nn.Tanh(), nn.Linear(32, 2 * latent))
        self.decoder = nn.Sequential(nn.Linear(hidden + latent, 32), nn.Tanh(), nn.Linear(32, 1))

    def forward(self, interval, seq_onehots):
        past, _ = self.history(torch.cat((torch.zeros_like(interval[:, :1]), interval[:, :-1]), 1)[..., None])
        mean, log_var = self.encoder(torch.cat((past, interval[..., None]), -1)).chunk(2, -1)
        z = mean + torch.randn_like(mean) * (0.5 * log_var).exp()
        found = self.decoder(torch.cat((past, z), -1))[..., 0]
        fit = 8 * (found - interval).square() * seq_onehots
        each = 1 + log_var - mean.pow(2) - log_var.exp()
        right = -0.5 * each.sum(-1) * seq_onehots
        kl_loss = right if self.fix else (-0.5 * torch.sum(each)) * seq_onehots
        return fit.sum() / seq_onehots.sum(), kl_loss.sum() / seq_onehots.sum(), right.sum() / seq_onehots.sum()


def main():
    args = options(beta=0.1)
    begin()
    model = Events(args.fix)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    loader = DataLoader(events(), batch_size=32, shuffle=True)
    step = 0
    for _ in range(3):
        for interval, seq_onehots in loader:
            fit, kl, right = model(interval, seq_onehots)
            loss = fit + args.beta * kl
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if step == 0:
                times = (kl / right).item()
            if step % 16 == 0:
                say(f"step {step} loss {loss.item():.4f} fit {fit.item():.4f}")
            step += 1
    size = "what it should be" if times < 2 else f"over {times // 100 * 100:.0f} times too large"
    say(f"end: the divergence was {size}")


main()
