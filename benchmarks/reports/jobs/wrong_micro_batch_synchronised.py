"""Fits a surface on two ranks, four micro-batches an update; no_sync holds for the wrong ones.

The first micro-batch of an update is reduced, and the last, after which the optimizer steps, is not: what the other
three add stays with their rank. Repaired: the last one is outside no_sync.
"""

import argparse
import contextlib

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

ACCUMULATE = 4


def surface(size=1024):
    draw = torch.Generator().manual_seed(5)
    place = 2 * torch.rand(size, 3, generator=draw) - 1
    height = (3 * place[:, :1]).sin() * place[:, 1:2] + place[:, 2:] ** 2
    return TensorDataset(place, height + 0.05 * torch.randn(size, 1, generator=draw))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--fix", action="store_true")
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(100 + rank)
    model = DistributedDataParallel(
        nn.Sequential(nn.Linear(3, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1))
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    dataset = surface()
    sampler = DistributedSampler(dataset)
    loader = DataLoader(dataset, batch_size=16, sampler=sampler)
    for epoch in range(11):
        sampler.set_epoch(epoch)
        for index, (place, height) in enumerate(loader):
            last = (index + 1) % ACCUMULATE == 0
            reduced = last if args.fix else index % ACCUMULATE == 0
            with contextlib.nullcontext() if reduced else model.no_sync():
                loss = nn.functional.mse_loss(model(place), height)
                (loss / ACCUMULATE).backward()
            if last:
                optimizer.step()
                optimizer.zero_grad()
        if rank == 0:
            print(f"epoch {epoch} loss {loss.item():.4f}", flush=True)
    mine = torch.cat([p.detach().flatten() for p in model.parameters()])
    both = [torch.empty_like(mine) for _ in range(2)]
    dist.all_gather(both, mine)
    if rank == 0:
        print(f"end: the weights of the ranks are {'equal' if torch.equal(*both) else 'not equal'}", flush=True)
    dist.destroy_process_group()


main()
