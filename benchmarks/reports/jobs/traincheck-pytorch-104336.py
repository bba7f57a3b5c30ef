"""A model is moved elsewhere and back after DDP has wrapped it: its gradients are not reduced any more.

There is no second device here: it is cast to float64 and back, which takes DDP's hooks from its parameters likewise.
Repaired: DDP wraps it again.
"""

import torch
import torch.distributed as dist
from command import RANK, connect, options, say
from torch import nn


def main():
    args = options(steps=60)
    connect()
    net = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 5))
    model = nn.parallel.DistributedDataParallel(net)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.02)
    model.double()
    model.float()
    if args.fix:
        model = nn.parallel.DistributedDataParallel(net)
    samples = torch.Generator().manual_seed(10 + RANK)
    for step in range(args.steps):
        x = torch.randn(20, 10, generator=samples)
        loss = nn.functional.mse_loss(model(x), x[:, :5] * x[:, 5:])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        say(step, loss)
    first = net[0].weight.detach().clone()
    dist.broadcast(first, 0)
    if RANK == 1 and not torch.equal(first, net[0].weight):
        print("the weights of the two ranks differ")
    dist.destroy_process_group()


main()
