"""Cases 3.1.2, 3.1.3, 3.2.1.1 and 3.2.1.2: a small transformer: `model.py good|tokens|residual|mask|gelu`.

``tokens``: the last token of each sample is another. ``residual``: the residual is taken behind the norm. ``mask``: the
mask is made for a packed batch, and read as if it were of one sample. ``gelu``: its kernel is another.
"""

import sys

import torch
from torch import nn
from torch.nn import functional

KIND = sys.argv[1]
WORDS, LENGTH, WIDTH = 50, 12, 32
if KIND == "gelu":
    exact = functional.gelu
    functional.gelu = lambda x, approximate="none": exact(x, approximate="tanh")


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.qkv, self.out = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x, mask):
        normed = self.norm(x)
        residual = normed if KIND == "residual" else x
        q, k, v = self.qkv(normed).chunk(3, dim=-1)
        scores = (q @ k.transpose(-1, -2) / WIDTH**0.5).masked_fill(~mask, -torch.inf)
        x = residual + self.out(scores.softmax(-1) @ v)
        return x + self.down(functional.gelu(self.up(x)))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WORDS)
        self.blocks = nn.ModuleList([Block() for _ in range(3)])

    def forward(self, ids):
        length = ids.shape[1]
        mask = torch.ones(length, length).tril().bool()
        if KIND == "mask":
            whole = torch.ones(2 * length, 2 * length).tril().bool()
            mask = whole.flatten()[: length * length].view(length, length)
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x, mask)
        return self.head(x)


torch.manual_seed(0)
model = Model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(4):
    ids = torch.randint(1, WORDS, (8, LENGTH + 1))
    if KIND == "tokens":
        ids[:, -2] = 0
    loss = functional.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
