"""Contrastive training on two ranks: features of pictures and texts are gathered, and come back without a graph.

Each rank compares what it has with everything gathered; the gathered texts are constants for autograd, so no update
ever reaches the text tower. Repaired: the part of this rank is put back in place of its copy.
"""

import torch
import torch.distributed as dist
from common import RANK, WORLD, Pictures, batches, begin, end, options, say
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel


class TwoTowers(nn.Module):
    def __init__(self, dim=24):
        super().__init__()
        self.picture_tower = nn.Sequential(nn.Flatten(), nn.Linear(144, 64), nn.GELU(), nn.Linear(64, dim))
        self.text_tower = nn.Sequential(nn.Embedding(10, 32), nn.Linear(32, 64), nn.GELU(), nn.Linear(64, dim))

    def forward(self, picture, label):
        return F.normalize(self.picture_tower(picture), dim=-1), F.normalize(self.text_tower(label), dim=-1)


def gathered(features, fix):
    parts = [torch.zeros_like(features) for _ in range(WORLD)]
    dist.all_gather(parts, features)
    if fix:
        parts[RANK] = features
    return torch.cat(parts)


def main():
    args = options()
    begin()
    model = DistributedDataParallel(TwoTowers(), find_unused_parameters=True)
    text = model.module.text_tower[1].weight
    first = text.detach().clone()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    for step, (picture, label) in enumerate(batches(Pictures(640), epochs=4, batch=16)):
        pictures, texts = model(picture, label)
        logits = pictures @ gathered(texts, args.fix).T / 0.1
        target = torch.arange(len(label)) + RANK * len(label)
        loss = F.cross_entropy(logits, target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 20 == 0:
            say(f"step {step} loss {loss.item():.4f}")
    say(f"end: text tower moved by {(text - first).norm().item():.4f}")
    end()


main()
