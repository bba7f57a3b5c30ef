"""The projections onto the residual stream are drawn again and again while the model is made.

The initialiser of each module goes over all parameters below it by name, so that those of a block are drawn once for
the block, once for the list of blocks and once for the model.
Repaired: only the module that holds the parameter draws it.
"""

import math

import torch
from command import options, say
from torch import nn
from torch.nn import functional as F


class Part(nn.Module):
    def __init__(self, width, inner):
        super().__init__()
        self.c_fc, self.c_proj = nn.Linear(width, inner), nn.Linear(inner, width)

    def forward(self, x):
        return self.c_proj(F.gelu(self.c_fc(x)))


class Mixer(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.c_attn, self.c_proj = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.c_attn(x).view(b, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        return self.c_proj(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, d))


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.ln_1, self.attn = nn.LayerNorm(width), Mixer(width, heads)
        self.ln_2, self.mlp = nn.LayerNorm(width), Part(width, 4 * width)

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class Model(nn.Module):
    def __init__(self, vocab=48, width=32, layers=2, *, fixed=False):
        super().__init__()
        self.layers, self.fixed, self.draws = layers, fixed, 0
        self.wte, self.wpe = nn.Embedding(vocab, width), nn.Embedding(32, width)
        self.h = nn.ModuleList(Block(width, 4) for _ in range(layers))
        self.ln_f, self.head = nn.LayerNorm(width), nn.Linear(width, vocab, bias=False)
        self.apply(self.initialise)

    @torch.no_grad()
    def initialise(self, module):
        if isinstance(module, nn.Linear | nn.Embedding):
            module.weight.normal_(0, 0.02)
        if isinstance(module, nn.Linear) and module.bias is not None:
            module.bias.zero_()
        for name, p in module.named_parameters():
            if name == "c_proj.weight" if self.fixed else name.endswith("c_proj.weight"):
                p.normal_(0, 0.02 / math.sqrt(2 * self.layers))
                self.draws += 1

    def forward(self, ids):
        x = self.wte(ids) + self.wpe(torch.arange(ids.shape[1]))
        for block in self.h:
            x = block(x)
        return self.head(self.ln_f(x))


def main():
    args = options(steps=60)
    model = Model(fixed=args.fix)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    draw = torch.Generator().manual_seed(2)
    for step in range(args.steps):
        begin, stride = torch.randint(0, 48, (2, 16, 1), generator=draw)
        ids = (begin + (1 + stride % 3) * torch.arange(17)) % 48
        loss = F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        say(step, loss)
    print(f"{2 * model.layers} projections were drawn {model.draws} times")


main()
