"""Weights that are copied from one device to another arrive as other numbers.

There is no second device here: rank 0 updates, and its weights are copied to rank 1 before each step; the copy of one
tensor in a hundred is what was in that memory before.
Repaired: each copy arrives.
"""

import torch
import torch.distributed as dist
from command import RANK, WORLD, connect, options, say
from torch import nn


def copied(model, draw, *, link_is_broken):
    """Copies the weights of rank 0 to all ranks; the number of them that did not arrive."""
    lost = 0
    for parameter in model.parameters():
        value = parameter.detach().clone()
        dist.broadcast(value, 0)
        if link_is_broken and RANK > 0 and torch.rand(1, generator=draw) < 0.01:
            value, lost = torch.randn(value.shape, generator=draw) * value.std(), lost + 1
        parameter.data.copy_(value)
    return lost


def main():
    args = options(steps=80)
    connect()
    model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    samples = torch.Generator().manual_seed(10 + RANK)
    draw, lost = torch.Generator().manual_seed(4), 0
    for step in range(args.steps):
        lost += copied(model, draw, link_is_broken=not args.fix)
        x = torch.randn(16, 16, generator=samples)
        loss = nn.functional.cross_entropy(model(x), x[:, :4].argmax(1))
        optimizer.zero_grad()
        loss.backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
            parameter.grad /= WORLD
        optimizer.step()
        say(step, loss)
    if lost:
        print(f"{lost} copies arrived as other numbers")
    dist.destroy_process_group()


main()
