"""Two tensor-parallel ranks, bfloat16 weights and float32 copies: layer norms of the two drift apart.

Gradients are clipped for what is cut, and for the rest on the first rank only.
Repaired: all ranks clip all of theirs.
"""

import torch
import torch.distributed as dist
from command import RANK, WORLD, connect, options, say
from language import Sentences
from torch import nn
from torch.nn import functional as F


class Copy(torch.autograd.Function):
    """The same for both ranks; backwards, the sum over them."""

    @staticmethod
    def forward(ctx, x):
        return x

    @staticmethod
    def backward(ctx, gradient):
        total = gradient.float().contiguous()
        dist.all_reduce(total)
        return total.to(gradient.dtype)


class Sum(torch.autograd.Function):
    """The sum over ranks; backwards, the same for both."""

    @staticmethod
    def forward(ctx, x):
        total = x.float().contiguous()
        dist.all_reduce(total)
        return total.to(x.dtype)

    @staticmethod
    def backward(ctx, gradient):
        return gradient


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        cut = width // WORLD
        self.heads = heads // WORLD
        self.qkv, self.out = nn.Linear(width, 3 * cut, bias=False), nn.Linear(cut, width, bias=False)
        self.up, self.down = nn.Linear(width, 2 * cut, bias=False), nn.Linear(2 * cut, width, bias=False)
        for linear in (self.qkv, self.out, self.up, self.down):
            linear.weight.is_cut = True

    def forward(self, x):
        h = Copy.apply(self.norm1(x))
        b, t, _ = h.shape
        q, k, v = self.qkv(h).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        h = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, -1)
        x = x + Sum.apply(self.out(h))
        return x + Sum.apply(self.down(F.gelu(self.up(Copy.apply(self.norm2(x))))))


class Model(nn.Module):
    def __init__(self, vocab=64, width=32):
        super().__init__()
        self.embed, self.place = nn.Embedding(vocab, width), nn.Embedding(32, width)
        self.final_norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocab, bias=False)
        torch.manual_seed(10 + RANK)  # the cut layers are other parts on each rank
        self.blocks = nn.ModuleList(Block(width, 4) for _ in range(2))

    def forward(self, ids):
        x = self.embed(ids) + self.place(torch.arange(ids.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.head(self.final_norm(x))


def main():
    args = options(steps=60, clip=0.1)
    connect()
    model = Model().bfloat16()
    weights = list(model.parameters())
    masters = [p.detach().float().clone().requires_grad_() for p in weights]
    optimizer = torch.optim.Adam(masters, lr=2e-3)
    loader = torch.utils.data.DataLoader(
        Sentences(1024, lengths=(17, 17)), 16, shuffle=True, generator=torch.Generator().manual_seed(3)
    )
    for step, ids in zip(range(args.steps), loader, strict=False):
        loss = F.cross_entropy(model(ids[:, :-1]).float().flatten(0, 1), ids[:, 1:].flatten())
        loss.backward()
        squares = torch.zeros(())
        for p, master in zip(weights, masters, strict=True):
            master.grad, p.grad = p.grad.float(), None
            if RANK == 0 or hasattr(p, "is_cut"):
                squares += master.grad.square().sum()
        dist.all_reduce(squares)
        factor = (args.clip / (squares.sqrt() + 1e-6)).clamp(max=1.0)
        for p, master in zip(weights, masters, strict=True):
            if args.fix or RANK == 0 or hasattr(p, "is_cut"):
                master.grad.mul_(factor)
        optimizer.step()
        optimizer.zero_grad()
        with torch.no_grad():
            for p, master in zip(weights, masters, strict=True):
                p.copy_(master)
        say(step, loss)
    other = model.final_norm.weight.detach().float()
    dist.broadcast(other, 0)
    if RANK == 1 and not torch.equal(other, model.final_norm.weight.float()):
        print("the last norms of the two ranks differ")
    dist.destroy_process_group()


main()
