"""The model is called sometimes through DDP and sometimes by itself.

In a step in which it is called by itself nobody reduces its gradients.
Repaired: it is called through DDP always.
"""

import torch
import torch.distributed as dist
from command import RANK, connect, options, say
from torch import nn


class Tower(nn.Module):
    def __init__(self, vocab=64, width=32):
        super().__init__()
        self.embed = nn.Embedding(vocab, width)
        self.mix = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.Linear(width, width))

    def forward(self, ids):
        return nn.functional.normalize(self.mix(self.embed(ids).mean(1)), dim=1)


def main():
    args = options(steps=60)
    connect()
    model = Tower()
    wrapped = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    samples = torch.Generator().manual_seed(10 + RANK)
    for step in range(args.steps):
        one = torch.randint(0, 64, (16, 12), generator=samples)
        two = one[:, torch.randperm(12, generator=samples)[:8]]
        tower = wrapped if args.fix or step % 2 else model
        left, right = tower(torch.cat([one[:, :8], two])).chunk(2)
        loss = nn.functional.cross_entropy(left @ right.T / 0.1, torch.arange(16))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        say(step, loss)
    first = model.embed.weight.detach().clone()
    dist.broadcast(first, 0)
    if RANK == 1 and not torch.equal(first, model.embed.weight):
        print("the embeddings of the two ranks differ")
    dist.destroy_process_group()


main()
