"""After a restart samples are read that were read before: the updates made are skipped as if they were batches.

An update takes four batches. Started twice: 30 updates, then with --resume 30 more.
Repaired: four times as many batches are skipped.
"""

import torch
from command import RANK, WORLD, connect, options, say
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

ACCUMULATE, BATCH = 4, 4


class Points(Dataset):
    def __init__(self, n=4096):
        self.x = torch.randn(n, 16, generator=torch.Generator().manual_seed(4))
        self.y = (self.x[:, :5] * self.x[:, 5:10]).argmax(1)

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return self.x[i], self.y[i], i


def batches(skip):
    data = Points()
    loader = DataLoader(data, BATCH, sampler=DistributedSampler(data, WORLD, RANK, seed=1))
    for number, batch in enumerate(loader):
        if number >= skip:
            yield batch


def main():
    args = options(steps=30)
    connect()
    model = DistributedDataParallel(nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 5)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    done, before = 0, set()
    if args.resume:
        state = torch.load(args.to)
        model.module.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        done, before = state["updates"], set(state["read"])
    loader = batches(skip=done * (ACCUMULATE if args.fix else 1))
    read = []
    for step in range(done, done + args.steps):
        optimizer.zero_grad()
        for _ in range(ACCUMULATE):
            x, y, i = next(loader)
            loss = nn.functional.cross_entropy(model(x), y) / ACCUMULATE
            loss.backward()
            read += i.tolist()
        optimizer.step()
        say(step, loss.detach() * ACCUMULATE, every=10)
    if RANK == 0:
        torch.save(
            {
                "model": model.module.state_dict(),
                "optimizer": optimizer.state_dict(),
                "updates": done + args.steps,
                "read": read,
            },
            args.to,
        )
        print(f"{sum(i in before for i in read)} of {len(read)} samples of rank 0 were read before")
    torch.distributed.destroy_process_group()


main()
