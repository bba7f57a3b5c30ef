"""Experts over ranks, and no token is dropped: from step 40 on each rank exchanges as much as its own tokens need.

With NCCL ranks that exchange different amounts wait for each other for ever. Gloo ends the job, so that the exchange is
made to wait here, and the job ends once nothing has happened for five seconds.
Repaired: all exchange as much as the largest needs.
"""

import os
import threading
import time

import torch
import torch.distributed as dist
from command import RANK, WORLD, connect, options, say
from torch import nn
from torch.nn import functional as F


def exchange(tensor):
    """What all ranks have for this one; as with NCCL it does not end where their amounts differ."""
    sizes = [torch.zeros(1, dtype=torch.long) for _ in range(WORLD)]
    dist.all_gather(sizes, torch.tensor([tensor.numel()]))
    if len({int(size) for size in sizes}) > 1:
        time.sleep(3600)
    out = torch.empty_like(tensor)
    dist.all_to_all_single(out, tensor.contiguous())
    return out


def watchdog(progress):
    while time.monotonic() - progress["at"] < 5:
        time.sleep(0.2)
    if RANK == 0:
        print(f"nothing happens since step {progress['step']}", flush=True)
    os._exit(0)


class Exchange(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return exchange(x)

    @staticmethod
    def backward(ctx, gradient):
        return exchange(gradient)


class Experts(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.gate, self.same_room = nn.Linear(width, WORLD, bias=False), True
        torch.manual_seed(100 + RANK)
        self.expert = nn.Sequential(nn.Linear(width, 64), nn.ReLU(), nn.Linear(64, width))

    def forward(self, x):
        tokens = x.flatten(0, -2)
        weight, chosen = self.gate(tokens).softmax(-1).max(-1)
        room = torch.bincount(chosen, minlength=WORLD).max()
        if self.same_room:
            dist.all_reduce(room, dist.ReduceOp.MAX)
        place = torch.zeros_like(chosen)
        for expert in range(WORLD):
            place[chosen == expert] = torch.arange(int((chosen == expert).sum()))
        sent = x.new_zeros(WORLD, int(room), x.shape[-1]).index_put((chosen, place), tokens)
        back = Exchange.apply(self.expert(Exchange.apply(sent)))
        return (back[chosen, place] * weight[:, None]).view(x.shape)


class Model(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.embed, self.head = nn.Embedding(64, width), nn.Linear(width, 64)
        self.moe = Experts(width)

    def forward(self, ids):
        x = self.embed(ids)
        return self.head(x + self.moe(x))


def main():
    args = options(steps=60)
    connect()
    model = Model()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    samples = torch.Generator().manual_seed(10 + RANK)
    progress = {"at": time.monotonic() + 60, "step": 0}
    threading.Thread(target=watchdog, args=(progress,), daemon=True).start()
    for step in range(args.steps):
        model.moe.same_room = args.fix or step < 40
        ids = (torch.randint(0, 64, (8, 1), generator=samples) + torch.arange(17)) % 64
        loss = F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        for name, p in model.named_parameters():
            if "expert" not in name:
                dist.all_reduce(p.grad)
            p.grad /= WORLD
        optimizer.step()
        say(step, loss)
        progress.update(at=time.monotonic(), step=step)
    progress["at"] += 3600
    dist.destroy_process_group()


main()
