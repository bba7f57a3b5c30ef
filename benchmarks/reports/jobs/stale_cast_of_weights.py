"""Classifies digits in bfloat16, with one autocast around all steps of an epoch.

Autocast keeps the casts of the weights until its region ends, so that all forward passes of the epoch are done with
the weights it began with. Repaired: the region is one forward pass.
"""

import argparse
import contextlib

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def digits(size=960):
    draw = torch.Generator().manual_seed(12)
    shape = torch.randn(10, 64, generator=draw)
    label = torch.randint(0, 10, (size,), generator=draw)
    return TensorDataset(0.5 * shape[label] + torch.randn(size, 64, generator=draw), label)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--fix", action="store_true")
    args = parser.parse_args()
    torch.manual_seed(7)
    model = nn.Sequential(nn.Linear(64, 96), nn.ReLU(), nn.Linear(96, 96), nn.ReLU(), nn.Linear(96, 10))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loader = DataLoader(digits(), batch_size=32, shuffle=True)
    probe = digits(32).tensors[0]
    cast = lambda: torch.autocast("cpu", dtype=torch.bfloat16)  # noqa: E731
    for epoch in range(3):
        with contextlib.nullcontext() if args.fix else cast():
            for step, (x, label) in enumerate(loader):
                with cast() if args.fix else contextlib.nullcontext():
                    logits = model(x)
                loss = nn.functional.cross_entropy(logits.float(), label)
                if step == 0:
                    first = model(probe).detach().float()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            moved = (model(probe).detach().float() - first).abs().max().item()
        print(f"epoch {epoch} loss {loss.item():.4f}", flush=True)
    print(f"end: within an epoch the outputs for one input {'stayed' if moved == 0 else 'moved'}", flush=True)


main()
