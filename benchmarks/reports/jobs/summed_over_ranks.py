"""Translates codes on two ranks, whose gradients are reduced by hand: they are added up and not divided.

The rate is as many times too high as there are ranks. Repaired: the sum is divided by their number.
"""

import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def codes(size=640):
    draw = torch.Generator().manual_seed(32)
    code = torch.randint(0, 10, (size, 6), generator=draw)
    word = torch.randperm(10, generator=draw)[code]
    slip = torch.rand(size, 6, generator=draw) < 0.2
    return TensorDataset(code, torch.where(slip, torch.randint(0, 10, (size, 6), generator=draw), word))


def reduce_gradients(model, divide):
    for p in model.parameters():
        dist.all_reduce(p.grad)
        if divide:
            p.grad /= dist.get_world_size()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--fix", action="store_true")
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(70 + rank)
    model = nn.Sequential(nn.Embedding(10, 24), nn.Linear(24, 48), nn.ReLU(), nn.Linear(48, 10))
    for p in model.parameters():
        dist.broadcast(p.data, src=0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    dataset = codes()
    sampler = DistributedSampler(dataset)
    loader = DataLoader(dataset, batch_size=16, sampler=sampler)
    for epoch in range(4):
        sampler.set_epoch(epoch)
        for code, word in loader:
            loss = nn.functional.cross_entropy(model(code).flatten(0, 1), word.flatten())
            optimizer.zero_grad()
            loss.backward()
            own = model[1].weight.grad.clone()
            reduce_gradients(model, divide=args.fix)
            optimizer.step()
        if rank == 0:
            print(f"epoch {epoch} loss {loss.item():.4f}", flush=True)
    both = [torch.empty_like(own) for _ in range(2)]
    dist.all_gather(both, own)
    times = (model[1].weight.grad.norm() / ((both[0] + both[1]) / 2).norm()).item()
    if rank == 0:
        print(f"end: the reduced gradients are {times:.1f} times the mean of the ranks'", flush=True)
    dist.destroy_process_group()


main()
