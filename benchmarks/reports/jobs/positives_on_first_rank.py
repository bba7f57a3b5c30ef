"""Contrastive training on two ranks, with similarities to what all ranks have: a sample is its own positive on rank 1.

The mask of positives loses its first diagonal, which is where a sample meets itself on rank 0; on rank 1 it stands
further to the right. Repaired: the diagonal of this rank.
"""

import torch
import torch.distributed as dist
from common import RANK, WORLD, Pictures, batches, begin, end, options, say
from torch import nn
from torch.distributed.nn.functional import all_gather
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

TEMPERATURE = 0.2


def positives(index, fix):
    """Mask [2 B, 2 B W] of the other view of each sample."""
    parts = [torch.zeros_like(index) for _ in range(WORLD)]
    dist.all_gather(parts, index)
    mask = index[:, None] == torch.cat(parts)[None]
    if fix:
        mask[:, RANK * len(index) :].fill_diagonal_(False)
    else:
        mask.fill_diagonal_(False)
    return mask, index[:, None] != torch.cat(parts)[None]


def simclr_loss(z, index, fix):
    similar = torch.exp(z @ torch.cat(all_gather(z)).T / TEMPERATURE)
    same, other = positives(index, fix)
    pos, neg = (similar * same).sum(1), (similar * other).sum(1)
    return -torch.log(pos / (pos + neg)).mean(), same.sum(1).float().mean()


def view(picture):
    """Shifted by up to one pixel, brighter or darker, under noise."""
    shift = torch.randint(-1, 2, (2,)).tolist()
    bright = 0.7 + 0.6 * torch.rand(len(picture), 1, 1, 1)
    return bright * picture.roll(shift, (-2, -1)) + 0.3 * torch.randn_like(picture)


def main():
    args = options()
    begin()
    model = nn.Sequential(nn.Flatten(), nn.Linear(144, 96), nn.ReLU(), nn.Linear(96, 48), nn.ReLU(), nn.Linear(48, 24))
    model = DistributedDataParallel(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    torch.manual_seed(RANK)
    for step, (picture, _) in enumerate(batches(Pictures(768, noise=0.7), epochs=5, batch=16)):
        index = torch.arange(len(picture)).repeat(2) + RANK * len(picture)
        z = F.normalize(model(torch.cat((view(picture), view(picture)))), dim=-1)
        loss, count = simclr_loss(z, index, args.fix)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step == 0:
            counts = [torch.zeros_like(count) for _ in range(WORLD)]
            dist.all_gather(counts, count)
        if step % 20 == 0:
            say(f"step {step} loss {loss.item():.4f}")
    say(f"end: a sample has {counts[0].item():.1f} positives on rank 0 and {counts[1].item():.1f} on rank 1")
    end()


main()
