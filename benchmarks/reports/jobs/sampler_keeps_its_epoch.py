"""Classifies sounds on two ranks; each rank's part comes from a DistributedSampler that nobody tells the epoch.

The permutation is drawn from seed + epoch, and the epoch stays 0. Repaired: set_epoch is called before each epoch.
"""

import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def sounds(size=512):
    draw = torch.Generator().manual_seed(3)
    label = torch.randint(0, 5, (size,), generator=draw)
    time = torch.arange(48) / 48
    phase = 6.28 * torch.rand(size, 1, generator=draw)
    wave = (6.28 * (label[:, None] + 2) * time + phase).sin()
    return TensorDataset(wave + 0.5 * torch.randn(size, 48, generator=draw), label)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--fix", action="store_true")
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(10 + rank)
    net = nn.Sequential(
        nn.Unflatten(1, (1, 48)), nn.Conv1d(1, 16, 9), nn.ReLU(), nn.Conv1d(16, 16, 9, stride=2), nn.ReLU(),
        nn.Flatten(), nn.Linear(16 * 16, 5),
    )  # fmt: skip
    model = DistributedDataParallel(net)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    dataset = sounds()
    sampler = DistributedSampler(dataset, shuffle=True)
    loader = DataLoader(dataset, batch_size=16, sampler=sampler)
    orders = []
    for epoch in range(6):
        if args.fix:
            sampler.set_epoch(epoch)
        seen = []
        for wave, label in loader:
            loss = nn.functional.cross_entropy(model(wave), label)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            seen += wave[:, 0].tolist()
        orders.append(tuple(seen))
        if rank == 0:
            print(f"epoch {epoch} loss {loss.item():.4f}", flush=True)
    if rank == 0:
        print(f"end: {len(orders)} epochs in {len(set(orders))} different orders", flush=True)
    dist.destroy_process_group()


main()
