"""FSDP2 where only rank 0 has loaded the trained weights: each rank cuts its shard from what it holds itself.

Half of every matrix is trained, half is as it was drawn on the other rank. Repaired: rank 0 broadcasts first.
"""

import torch
import torch.distributed as dist
from common import Points, begin, end, options, say
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn import functional as F
from torch.utils.data import DataLoader, DistributedSampler

FILE = "trained.pt"


def network():
    return nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 5))


def train_first():
    """Weights after some updates of one process, in FILE."""
    model = network()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for x, label in DataLoader(Points(2048, seed=8), batch_size=64):
        optimizer.zero_grad()
        F.cross_entropy(model(x), label).backward()
        optimizer.step()
    return model.state_dict()


def main():
    args = options()
    begin()
    rank = dist.get_rank()
    trained = train_first() if rank == 0 else None
    torch.manual_seed(100 + rank)
    model = network()
    if rank == 0:
        model.load_state_dict(trained)
    if args.fix:
        for value in model.state_dict().values():
            dist.broadcast(value, src=0)
    fully_shard(model)
    data = Points(640)
    sampler = DistributedSampler(data, seed=5)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for step, (x, label) in enumerate(DataLoader(data, batch_size=16, sampler=sampler, drop_last=True)):
            loss = F.cross_entropy(model(x), label)
            if epoch == step == 0:
                say(f"end: the first loss is {'high' if loss.item() > 1 else 'low'}: {loss.item():.3f}")
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        say(f"epoch {epoch} loss {loss.item():.4f}")
    end()


main()
