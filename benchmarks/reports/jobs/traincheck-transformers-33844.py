"""Dropout of the attention stays on in evaluation: the function is given its rate whatever the mode.

There is no flash attention on a CPU; the function of torch takes the rate likewise.
Repaired: the rate is 0 where the module is not trained.
"""

import torch
from command import options, say
from torch import nn
from torch.nn import functional as F


class Attention(nn.Module):
    def __init__(self, width, heads, dropout, *, fixed):
        super().__init__()
        self.heads, self.dropout, self.fixed = heads, dropout, fixed
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        rate = 0.0 if self.fixed and not self.training else self.dropout
        x = F.scaled_dot_product_attention(q, k, v, dropout_p=rate)
        return self.out(x.transpose(1, 2).reshape(b, t, d))


class Translator(nn.Module):
    def __init__(self, vocab=32, width=32, *, fixed=False):
        super().__init__()
        self.embed, self.place = nn.Embedding(vocab, width), nn.Embedding(16, width)
        self.norm, self.attention = nn.LayerNorm(width), Attention(width, 4, 0.1, fixed=fixed)
        self.after, self.dropout = nn.Linear(width, width), nn.Dropout(0.1)
        self.head = nn.Linear(width, vocab)

    def forward(self, ids):
        x = self.embed(ids) + self.place(torch.arange(ids.shape[1]))
        x = x + self.attention(self.norm(x))
        return self.head(x + self.dropout(F.gelu(self.after(x))))


def batch(n, draw):
    """Token ids [n, 12] and, as targets, the same rows from back to front."""
    ids = torch.randint(0, 32, (n, 12), generator=draw)
    return ids, ids.flip(1)


def main():
    args = options(steps=80)
    model = Translator(fixed=args.fix)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    draw = torch.Generator().manual_seed(5)
    held, answers = batch(64, torch.Generator().manual_seed(99))
    differs = 0
    for step in range(args.steps):
        model.train()
        ids, targets = batch(16, draw)
        loss = F.cross_entropy(model(ids).flatten(0, 1), targets.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        say(step, loss)
        if step % 20 == 19:
            model.eval()
            with torch.no_grad():
                twice = [F.cross_entropy(model(held).flatten(0, 1), answers.flatten()) for _ in range(2)]
            differs += bool(twice[0] != twice[1])
    if differs:
        print("two evaluations of one batch differ")


main()
