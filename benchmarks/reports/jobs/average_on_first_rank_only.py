"""Trains on two ranks with a moving average that goes back into the model every fifteen updates, on rank 0 alone.

Only the main process keeps an average; what it copies into its model the other rank never gets, so that the weights
part. Repaired: every rank keeps the average, which is the same everywhere.
"""

import argparse
import copy

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def signals(size=640):
    draw = torch.Generator().manual_seed(31)
    kind = torch.randint(0, 5, (size,), generator=draw)
    return TensorDataset(0.6 * torch.randn(5, 32, generator=draw)[kind] + torch.randn(size, 32, generator=draw), kind)


class Average:
    def __init__(self, model, decay=0.9):
        self.model, self.decay = copy.deepcopy(model), decay

    @torch.no_grad()
    def update(self, model):
        for mean, p in zip(self.model.parameters(), model.parameters(), strict=True):
            mean.lerp_(p, 1 - self.decay)

    @torch.no_grad()
    def copy_to(self, model):
        for mean, p in zip(self.model.parameters(), model.parameters(), strict=True):
            p.copy_(mean)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--fix", action="store_true")
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(60 + rank)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 5)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    average = Average(model.module) if args.fix or rank == 0 else None
    dataset = signals()
    sampler = DistributedSampler(dataset)
    loader = DataLoader(dataset, batch_size=16, sampler=sampler)
    updates = 0
    for epoch in range(4):
        sampler.set_epoch(epoch)
        for x, kind in loader:
            loss = nn.functional.cross_entropy(model(x), kind)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            updates += 1
            if average is not None:
                average.update(model.module)
                if updates % 15 == 0:
                    average.copy_to(model.module)
        if rank == 0:
            print(f"epoch {epoch} loss {loss.item():.4f}", flush=True)
    mine = torch.cat([p.detach().flatten() for p in model.parameters()])
    both = [torch.empty_like(mine) for _ in range(2)]
    dist.all_gather(both, mine)
    if rank == 0:
        print(f"end: the weights of the ranks are {'equal' if torch.equal(*both) else 'not equal'}", flush=True)
    dist.destroy_process_group()


main()
