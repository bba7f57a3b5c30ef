"""Fine-tunes a network with DeepSpeed's WarmupLR; head and body have rates of their own, and the warm-up has one peak.

It is broadcast to all groups, so that the body, which is to move slowly, is trained by the rate of the head. Repaired:
the peak of each group is its rate.
"""

import argparse

import torch
from deepspeed.runtime.lr_schedules import WarmupLR
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def samples(size=800):
    draw = torch.Generator().manual_seed(29)
    x = torch.randn(size, 16, generator=draw)
    label = (x[:, :4].sum(1) > 0).long() + (x[:, 4:8].sum(1) > 0.5).long()
    return TensorDataset(x, label)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--fix", action="store_true")
    args = parser.parse_args()
    torch.manual_seed(23)
    body = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU())
    head = nn.Linear(64, 3)
    model = nn.Sequential(body, head)
    optimizer = torch.optim.AdamW(
        [{"params": head.parameters(), "lr": 1e-2}, {"params": body.parameters(), "lr": 5e-4}]
    )
    rates = [group["lr"] for group in optimizer.param_groups]
    scheduler = WarmupLR(
        optimizer, warmup_max_lr=rates if args.fix else rates[0], warmup_num_steps=20, warmup_type="linear"
    )
    loader = DataLoader(samples(), batch_size=40, shuffle=True)
    for epoch in range(5):
        for x, label in loader:
            loss = nn.functional.cross_entropy(model(x), label)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            scheduler.step()
        print(f"epoch {epoch} loss {loss.item():.4f}", flush=True)
    now = [group["lr"] for group in optimizer.param_groups]
    print(f"end: the rates of head and body are {'equal' if now[0] == now[1] else 'different'} ({now})", flush=True)


main()
