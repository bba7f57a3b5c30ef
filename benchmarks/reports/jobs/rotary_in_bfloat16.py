"""A model is cast to bfloat16 as a whole, inv_freq with it, and positions take the dtype of inv_freq.

From 256 on bfloat16 has not every integer: neighbouring positions are rotated by one angle.
Repaired: angles are computed in float32.
"""

import torch
from common import GPT, Attention, Sentences, batches, begin, next_token_loss, options, say
from torch.nn import functional as F

ARGS = options()
LENGTH = 320


def turned(x_BHLD, angle_LD):
    cos, sin = angle_LD.cos().to(x_BHLD.dtype), angle_LD.sin().to(x_BHLD.dtype)
    left, right = x_BHLD.chunk(2, dim=-1)
    return x_BHLD * cos + torch.cat((-right, left), dim=-1) * sin


class RotaryAttention(Attention):
    def __init__(self, dim, heads):
        super().__init__(dim, heads)
        size = dim // heads
        self.register_buffer("inv_freq", 1.0 / (10000 ** (torch.arange(0, size, 2) / size)), persistent=False)

    def angles(self, length):
        if ARGS.fix:
            inv_freq = 1.0 / (10000 ** (torch.arange(0, 16, 2) / 16))
            return torch.outer(torch.arange(length).float(), inv_freq).repeat(1, 2)
        places = torch.arange(length).type_as(self.inv_freq)
        return torch.outer(places, self.inv_freq).repeat(1, 2)

    def forward(self, x_BLD):
        q, k, v = map(self.split, self.qkv(x_BLD).chunk(3, dim=-1))
        angle = self.angles(x_BLD.shape[1])
        mixed = F.scaled_dot_product_attention(turned(q, angle), turned(k, angle), v, is_causal=True)
        return self.proj(mixed.transpose(1, 2).reshape(x_BLD.shape))


def main():
    begin()
    model = GPT(attention=RotaryAttention, positions=False, layers=1).to(torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3)
    for step, rows in enumerate(batches(Sentences(72, length=LENGTH), epochs=2, batch=4)):
        loss = next_token_loss(model(rows[:, :-1]).float(), rows[:, 1:])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 12 == 0:
            say(f"step {step} loss {loss.item():.4f}")
    say(f"end: {len(model.h[0].attn.angles(LENGTH)[:, 0].unique())} different angles at {LENGTH} places")


main()
