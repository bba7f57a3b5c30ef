"""Classifies points on two ranks; each rank's ReduceLROnPlateau is given the validation loss of its own part.

The ranks halve their rates at different times, so that equal gradients become different updates. Repaired: the loss
is averaged over the ranks before the scheduler has it.
"""

import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def points(size, seed):
    draw = torch.Generator().manual_seed(seed)
    label = torch.randint(0, 3, (size,), generator=draw)
    centre = torch.tensor([[0.0, 1.2], [1.0, -0.6], [-1.0, -0.6]])[label]
    return TensorDataset(centre + 0.9 * torch.randn(size, 2, generator=draw), label)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--fix", action="store_true")
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(20 + rank)
    model = DistributedDataParallel(
        nn.Sequential(nn.Linear(2, 48), nn.ReLU(), nn.Linear(48, 48), nn.ReLU(), nn.Linear(48, 3))
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=1)
    train, held = points(512, 1), points(192, 2)
    sampler = DistributedSampler(train)
    loader = DataLoader(train, batch_size=32, sampler=sampler)
    mine = DataLoader(held, batch_size=96, sampler=DistributedSampler(held, shuffle=False))
    for epoch in range(12):
        sampler.set_epoch(epoch)
        model.train()
        for x, label in loader:
            loss = nn.functional.cross_entropy(model(x), label)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        model.eval()
        with torch.no_grad():
            score = sum(nn.functional.cross_entropy(model.module(x), label) for x, label in mine) / len(mine)
        if args.fix:
            dist.all_reduce(score)
            score /= dist.get_world_size()
        scheduler.step(score.item())
        rates = [torch.zeros(1) for _ in range(2)]
        dist.all_gather(rates, torch.tensor([optimizer.param_groups[0]["lr"]]))
        if rank == 0:
            print(
                f"epoch {epoch} held out {score.item():.4f} rates {rates[0].item():.4f} {rates[1].item():.4f}",
                flush=True,
            )
    if rank == 0:
        print(f"end: the ranks have {'the same rate' if torch.equal(*rates) else 'different rates'}", flush=True)
    dist.destroy_process_group()


main()
