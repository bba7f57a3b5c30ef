"""Each of two ranks shuffles with a seed of its own before it takes its part: parts overlap, and some data is in none.

The seed of the DistributedSampler is derived from the rank. Repaired: all ranks have one seed.
"""

import torch
import torch.distributed as dist
from common import RANK, WORLD, Pictures, begin, end, options, say
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

START = 1752480000


class Numbered(Pictures):
    """Pictures, their class and their number."""

    def __getitem__(self, place):
        return *super().__getitem__(place), place


def main():
    args = options(epochs=4)
    begin()
    data = Numbered(640)
    seed = 0 if args.fix else (START * RANK) % 2**31
    sampler = DistributedSampler(data, WORLD, RANK, shuffle=True, seed=seed, drop_last=True)
    loader = DataLoader(data, 16, sampler=sampler, drop_last=True)
    net = nn.Sequential(nn.Flatten(), nn.Linear(144, 64), nn.GELU(), nn.Linear(64, 10))
    model = DistributedDataParallel(net)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    step, read = 0, []
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for picture, label, number in loader:
            loss = F.cross_entropy(model(picture), label)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if epoch == 0:
                read.append(number)
            if step % 20 == 0:
                say(f"step {step} loss {loss.item():.4f}")
            step += 1
    mine = torch.cat(read)
    parts = [torch.empty_like(mine) for _ in range(WORLD)]
    dist.all_gather(parts, mine)
    once = len(torch.cat(parts).unique())
    say(f"end: {once} different samples of {len(data)} in the first epoch; all were read: {once == len(data)}")
    end()


main()
