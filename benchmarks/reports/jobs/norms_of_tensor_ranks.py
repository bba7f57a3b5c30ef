"""Two ranks cut each layer, and the rows between layers by tokens: the norms of the two drift apart.

Each has the gradients of its own tokens, and they are summed for the embedding and the head only.
Repaired: for the norms as well.
"""

import torch
import torch.distributed as dist
from command import RANK, WORLD, connect, options, say
from language import Sentences
from torch import nn
from torch.nn import functional as F


class Gather(torch.autograd.Function):
    """Tokens of all ranks; backwards, the sum over ranks for the tokens of this one."""

    @staticmethod
    def forward(ctx, x):
        parts = [torch.empty_like(x) for _ in range(WORLD)]
        dist.all_gather(parts, x.contiguous())
        return torch.cat(parts, 1)

    @staticmethod
    def backward(ctx, gradient):
        gradient = gradient.contiguous().clone()
        dist.all_reduce(gradient)
        return gradient.chunk(WORLD, 1)[RANK]


class Scatter(torch.autograd.Function):
    """The sum over ranks, for the tokens of this one; backwards, tokens of all ranks."""

    @staticmethod
    def forward(ctx, x):
        x = x.contiguous().clone()
        dist.all_reduce(x)
        return x.chunk(WORLD, 1)[RANK]

    @staticmethod
    def backward(ctx, gradient):
        parts = [torch.empty_like(gradient) for _ in range(WORLD)]
        dist.all_gather(parts, gradient.contiguous())
        return torch.cat(parts, 1)


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        cut = width // WORLD
        self.heads = heads // WORLD
        self.qkv, self.out = nn.Linear(width, 3 * cut, bias=False), nn.Linear(cut, width, bias=False)
        self.up, self.down = nn.Linear(width, 2 * cut, bias=False), nn.Linear(2 * cut, width, bias=False)

    def forward(self, x):
        h = Gather.apply(self.norm1(x))
        b, t, _ = h.shape
        q, k, v = self.qkv(h).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        h = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, -1)
        x = x + Scatter.apply(self.out(h))
        return x + Scatter.apply(self.down(F.gelu(self.up(Gather.apply(self.norm2(x))))))


class Model(nn.Module):
    def __init__(self, vocab=64, width=32):
        super().__init__()
        self.embed, self.place = nn.Embedding(vocab, width), nn.Embedding(32, width)
        self.final_norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocab, bias=False)
        torch.manual_seed(10 + RANK)  # the cut layers are other parts on each rank
        self.blocks = nn.ModuleList(Block(width, 4) for _ in range(2))

    def forward(self, ids):
        x = (self.embed(ids) + self.place(torch.arange(ids.shape[1]))).chunk(WORLD, 1)[RANK]
        for block in self.blocks:
            x = block(x)
        return self.head(self.final_norm(x))


def main():
    args = options(steps=60)
    connect()
    model = Model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    shared = [*model.embed.parameters(), *model.place.parameters(), *model.head.parameters()]
    if args.fix:
        shared += [p for n, p in model.named_parameters() if "norm" in n]
    loader = torch.utils.data.DataLoader(
        Sentences(1024, lengths=(17, 17)), 16, shuffle=True, generator=torch.Generator().manual_seed(3)
    )
    for step, ids in zip(range(args.steps), loader, strict=False):
        targets = ids[:, 1:].chunk(WORLD, 1)[RANK]
        loss = F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), targets.flatten()) / WORLD
        optimizer.zero_grad()
        loss.backward()
        for p in shared:
            dist.all_reduce(p.grad)
        optimizer.step()
        say(step, loss.detach() * WORLD)
    copies = [torch.empty(32) for _ in range(WORLD)]
    dist.all_gather(copies, model.blocks[0].norm1.weight.detach())
    if RANK == 0:
        print(f"the first norms of the two ranks differ by {(copies[0] - copies[1]).norm().item():.5f}")
    dist.destroy_process_group()


main()
