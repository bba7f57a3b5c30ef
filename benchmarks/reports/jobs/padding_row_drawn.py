"""An embedding has padding_idx=0, and every embedding is drawn anew afterwards: the padding row is not zero any more.

It gets no gradient, so it stays a random vector that every padded place adds. Repaired: the row is set to 0 again.
"""

import torch
from common import Sentences, batches, begin, options, say
from torch import nn
from torch.nn import functional as F


class Counter(nn.Module):
    """A sum over the tokens of a row, padded places included: they are zeros."""

    def __init__(self):
        super().__init__()
        self.atom_encoder = nn.Embedding(48, 32, padding_idx=0)
        self.read = nn.Sequential(nn.LayerNorm(32), nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 6))

    def forward(self, ids):
        return self.read(self.atom_encoder(ids).sum(1))


def init_params(module):
    if isinstance(module, nn.Linear):
        nn.init.normal_(module.weight, std=0.1)
        nn.init.zeros_(module.bias)
    if isinstance(module, nn.Embedding):
        nn.init.normal_(module.weight, std=0.1)


def padded(rows):
    """Rows cut to lengths of 4 to 24, filled with 0, and a class by their first tokens."""
    length = 4 + rows[:, -1] % 21
    ids = rows.masked_fill(torch.arange(rows.shape[1]) >= length[:, None], 0)
    return ids, (rows[:, 0] + rows[:, 1]) % 6


def main():
    args = options()
    begin()
    model = Counter()
    model.apply(init_params)
    if args.fix:
        with torch.no_grad():
            model.atom_encoder.weight[0].zero_()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    for step, rows in enumerate(batches(Sentences(1024, first=1), epochs=2, batch=16)):
        ids, target = padded(rows)
        loss = F.cross_entropy(model(ids), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 20 == 0:
            say(f"step {step} loss {loss.item():.4f}")
    say(f"end: the padding row has norm {model.atom_encoder.weight[0].norm().item():.3f}")


main()
