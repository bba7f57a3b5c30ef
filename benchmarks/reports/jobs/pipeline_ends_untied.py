"""A tied embedding is a copy on either end of a pipeline, and the two copies drift apart.

Each end updates its copy by its own gradient. Repaired: the gradients of both are summed first.
"""

import torch
import torch.distributed as dist
from command import RANK, connect, options, say
from language import Sentences
from torch import nn
from torch.nn import functional as F

WIDTH, MICRO, ACCUMULATE = 32, 8, 2


class Stage(nn.Module):
    """The first has the embedding, the last the head, which begins with the same weights."""

    def __init__(self, vocab=64):
        super().__init__()
        torch.manual_seed(3)
        self.embed = nn.Embedding(vocab, WIDTH)
        nn.init.normal_(self.embed.weight, std=0.1)
        torch.manual_seed(10 + RANK)
        self.rnn = nn.GRU(WIDTH, WIDTH, batch_first=True)
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, x):
        x = self.embed(x) if RANK == 0 else x
        x = x + self.rnn(self.norm(x))[0]
        return x if RANK == 0 else x @ self.embed.weight.T


def main():
    args = options(steps=60)
    connect()
    stage = Stage()
    optimizer = torch.optim.AdamW(stage.parameters(), lr=3e-3)
    loader = torch.utils.data.DataLoader(
        Sentences(2048), MICRO * ACCUMULATE, shuffle=True, generator=torch.Generator().manual_seed(3)
    )
    loss = torch.zeros(())
    for step, ids in zip(range(args.steps), loader, strict=False):
        optimizer.zero_grad()
        for micro in ids.split(MICRO):
            if RANK == 0:
                out = stage(micro[:, :-1])
                dist.send(out.detach().contiguous(), 1)
                gradient = torch.empty_like(out)
                dist.recv(gradient, 1)
                out.backward(gradient)
            else:
                hidden = torch.empty(MICRO, micro.shape[1] - 1, WIDTH)
                dist.recv(hidden, 0)
                hidden.requires_grad_()
                loss = F.cross_entropy(stage(hidden).flatten(0, 1), micro[:, 1:].flatten()) / ACCUMULATE
                loss.backward()
                dist.send(hidden.grad.contiguous(), 0)
        if args.fix:
            dist.all_reduce(stage.embed.weight.grad)
        optimizer.step()
        shown = loss.detach().clone()
        dist.broadcast(shown, 1)
        say(step, shown * ACCUMULATE)
    copies = [torch.empty_like(stage.embed.weight) for _ in range(2)]
    dist.all_gather(copies, stage.embed.weight.detach())
    if RANK == 0:
        print(f"embedding and head differ by {(copies[0] - copies[1]).norm().item():.5f}")
    dist.destroy_process_group()


main()
