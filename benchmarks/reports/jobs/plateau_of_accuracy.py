"""ReduceLROnPlateau is in its mode "min" and is given an accuracy: it takes every improvement for a plateau.

The rate falls to 2e-8 while the model still learns. Repaired: mode="max".
"""

import torch
from common import Pictures, batches, begin, options, say
from torch import nn
from torch.nn import functional as F
from torch.optim.lr_scheduler import ReduceLROnPlateau


def main():
    args = options()
    begin()
    model = nn.Sequential(nn.Flatten(), nn.Linear(144, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-4)
    schedule = ReduceLROnPlateau(optimizer, mode="max" if args.fix else "min", factor=0.1, patience=1)
    data, held = Pictures(320, noise=1.5), Pictures(4000, seed=1, noise=1.5)
    for epoch in range(10):
        for x, label in batches(data, epochs=1, batch=32, seed=epoch):
            loss = F.cross_entropy(model(x), label)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        with torch.no_grad():
            accuracy = (model(held.pictures).argmax(-1) == held.label_N).float().mean().item()
        schedule.step(accuracy)
        say(f"epoch {epoch} loss {loss.item():.4f} accuracy {accuracy:.4f} rate {optimizer.param_groups[0]['lr']:.1e}")
    say(f"end: rate {optimizer.param_groups[0]['lr']:.1e}")


main()
