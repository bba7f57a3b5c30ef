"""A contrastive loss trains an encoder that is in an optimizer of its own and in that of the loss: both step.

The encoder is updated twice with one gradient. Repaired: the optimizer of the loss has the loss's own matrix only.
"""

import torch
from common import Points, batches, begin, options, say
from torch import nn
from torch.nn import functional as F


class Contrast(nn.Module):
    """Says how alike two views are, by a bilinear product of their codes."""

    def __init__(self, encoder, dim=16):
        super().__init__()
        self.encoder = encoder
        self.W = nn.Parameter(torch.eye(dim) + 0.1 * torch.randn(dim, dim))

    def forward(self, anchor, positive):
        return self.encoder(anchor) @ self.W @ self.encoder(positive).T


def main():
    args = options(lr=1e-3)
    begin()
    encoder = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 16), nn.LayerNorm(16))
    contrast = Contrast(encoder)
    encoder_optimizer = torch.optim.Adam(encoder.parameters(), lr=args.lr)
    held = [contrast.W] if args.fix else contrast.parameters()
    cpc_optimizer = torch.optim.Adam(held, lr=args.lr)
    for step, (x, _) in enumerate(batches(Points(1280), epochs=2, batch=32)):
        logits = contrast(x + 0.2 * torch.randn_like(x), x + 0.2 * torch.randn_like(x))
        loss = F.cross_entropy(logits, torch.arange(len(x)))
        encoder_optimizer.zero_grad()
        cpc_optimizer.zero_grad()
        loss.backward()
        before = encoder[0].weight.detach().clone()
        encoder_optimizer.step()
        between = encoder[0].weight.detach().clone()
        cpc_optimizer.step()
        if step % 20 == 0:
            say(f"step {step} loss {loss.item():.4f}")
    moved = not torch.equal(before, between), not torch.equal(between, encoder[0].weight)
    say(f"end: the encoder moves {sum(moved)} times a step")


main()
