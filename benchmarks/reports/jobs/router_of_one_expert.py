"""The router of a mixture of experts is never trained: with one expert for each token its weight is always 1.

The weights are normalised over the experts that were chosen, of which there is one.
Repaired: they are normalised over all experts first.
"""

import torch
from command import RANK, WORLD, connect, options, say
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class Experts(nn.Module):
    def __init__(self, width=32, experts=4, topk=1, pre_softmax=False):
        super().__init__()
        self.topk, self.pre_softmax = topk, pre_softmax
        self.router = nn.Linear(width, experts, bias=False)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)) for _ in range(experts)
        )

    def forward(self, x):
        logits = self.router(x)
        if self.pre_softmax:
            weights, chosen = logits.softmax(-1).topk(self.topk, -1)
        else:
            scores, chosen = logits.topk(self.topk, -1)
            weights = scores.softmax(-1)
        out = torch.zeros_like(x)
        for i, expert in enumerate(self.experts):
            weight = (weights * (chosen == i)).sum(-1, keepdim=True)
            out = out + weight * expert(x)
        return x + out


def main():
    args = options(steps=80)
    connect()
    model = nn.Sequential(
        nn.Linear(16, 32),
        Experts(pre_softmax=args.fix),
        nn.LayerNorm(32),
        Experts(pre_softmax=args.fix),
        nn.Linear(32, 5),
    )
    before = model[1].router.weight.detach().clone()
    model = DistributedDataParallel(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for step in range(args.steps):
        draw = torch.Generator().manual_seed(WORLD * step + RANK)
        x = torch.randn(32, 16, generator=draw)
        loss = nn.functional.cross_entropy(model(x), (x[:, :5] * x[:, 5:10]).argmax(1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        say(step, loss)
    router = model.module[1].router.weight
    if RANK == 0:
        print(f"the router moved by {(router - before).norm().item():.6f}; its gradient is {router.grad.norm():.2e}")
    torch.distributed.destroy_process_group()


main()
