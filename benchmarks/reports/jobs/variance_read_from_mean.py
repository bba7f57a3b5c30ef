"""A variational autoencoder recommends items; mean and log-variance of the code are read from the same half.

What is uncertain is decided by what the code is, and half of the encoder's last layer is never used.
Repaired: the log-variance is the second half.
"""

import torch
from common import begin, options, say
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset


def clicks(users=1024, items=120, seed=0):
    """Which of 120 items of six tastes each user has clicked [N, 120]."""
    draw = torch.Generator().manual_seed(seed)
    taste = torch.randn(6, items, generator=torch.Generator().manual_seed(13))
    user = torch.softmax(2 * torch.randn(users, 6, generator=draw), -1)
    chance = torch.softmax(2.5 * user @ taste, -1)
    chosen = torch.multinomial(chance, 12, generator=draw)
    return TensorDataset(torch.zeros(users, items).scatter_(1, chosen, 1.0))


class MultiVAE(nn.Module):
    def __init__(self, fix, items=120, hidden=64, latent=16):
        super().__init__()
        self.fix, self.latent = fix, latent
        self.encoder = nn.Sequential(nn.Linear(items, hidden), nn.Tanh(), nn.Linear(hidden, 2 * latent))
        self.decoder = nn.Sequential(nn.Linear(latent, hidden), nn.Tanh(), nn.Linear(hidden, items))

    def forward(self, x):
        h = self.encoder(F.dropout(F.normalize(x), 0.3, self.training))
        mu_q = h[:, : self.latent]
        logvar_q = h[:, self.latent :] if self.fix else h[:, : self.latent]
        std_q = torch.exp(0.5 * logvar_q)
        kl = 0.5 * (-logvar_q + logvar_q.exp() + mu_q.square() - 1).sum(1).mean()
        z = mu_q + torch.randn_like(std_q) * std_q
        return self.decoder(z), kl, mu_q, logvar_q


def main():
    args = options(anneal=0.2)
    begin()
    model = MultiVAE(args.fix)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    loader = DataLoader(clicks(), batch_size=64, shuffle=True)
    step = 0
    for _ in range(6):
        for (x,) in loader:
            logits, kl, mu_q, logvar_q = model(x)
            neg_ll = -(F.log_softmax(logits, -1) * x).sum(1).mean()
            loss = neg_ll + min(args.anneal, step / 200) * kl
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if step % 16 == 0:
                say(f"step {step} loss {loss.item():.4f} kl {kl.item():.4f}")
            step += 1
    say(f"end: mean and log-variance {'are the same' if torch.equal(mu_q, logvar_q) else 'are two things'}")


main()
