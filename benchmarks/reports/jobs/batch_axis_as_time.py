"""Classifies sequences with a TransformerEncoder that was not told batch_first, and is given [batch, time, feature].

It attends over the samples of a batch and not over time. Repaired: batch_first=True.
"""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def molecules(size=640):
    draw = torch.Generator().manual_seed(13)
    atoms = torch.randint(0, 12, (size, 14), generator=draw)
    label = ((atoms == 3).any(1) & (atoms == 7).any(1)).long() + (atoms[:, 0] > 6).long()
    return TensorDataset(atoms, label)


class Encoder(nn.Module):
    def __init__(self, batch_first):
        super().__init__()
        self.embed, self.place = nn.Embedding(12, 32), nn.Parameter(0.02 * torch.randn(14, 32))
        layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=batch_first)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.out = nn.Linear(32, 3)

    def forward(self, atoms):
        return self.out(self.encoder(self.embed(atoms) + self.place).mean(1))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--fix", action="store_true")
    args = parser.parse_args()
    torch.manual_seed(8)
    model = Encoder(batch_first=args.fix)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loader = DataLoader(molecules(), batch_size=32, shuffle=True)
    for epoch in range(5):
        for atoms, label in loader:
            loss = nn.functional.cross_entropy(model(atoms), label)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch} loss {loss.item():.4f}", flush=True)
    with torch.no_grad():
        apart = (model(atoms)[:1] - model(atoms[:1])).abs().max().item()
    print(f"end: the output of a sample {'depends' if apart > 1e-3 else 'does not depend'} on its batch", flush=True)


main()
