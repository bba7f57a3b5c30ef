"""A model is made on the meta device and filled from a checkpoint; a buffer that is in no checkpoint stays zeros.

It is inv_freq, so that every rotation is by 0: attention has no positions. Repaired: it is computed after the load.
"""

import torch
from common import GPT, Attention, Sentences, batches, begin, next_token_loss, options, say
from torch.nn import functional as F


def turned(x_BHLD, angle_LD):
    left, right = x_BHLD.chunk(2, dim=-1)
    return x_BHLD * angle_LD.cos() + torch.cat((-right, left), dim=-1) * angle_LD.sin()


class RotaryAttention(Attention):
    def __init__(self, dim, heads):
        super().__init__(dim, heads)
        self.register_buffer("inv_freq", self.frequencies(dim // heads), persistent=False)

    @staticmethod
    def frequencies(dim, device=None):
        return 1.0 / (10000 ** (torch.arange(0, dim, 2, device=device) / dim))

    def forward(self, x_BLD):
        q, k, v = map(self.split, self.qkv(x_BLD).chunk(3, dim=-1))
        angle = torch.outer(torch.arange(x_BLD.shape[1]).float(), self.inv_freq).repeat(1, 2)
        mixed = F.scaled_dot_product_attention(turned(q, angle), turned(k, angle), v, is_causal=True)
        return self.proj(mixed.transpose(1, 2).reshape(x_BLD.shape))


def main():
    args = options()
    begin()
    checkpoint = GPT(attention=RotaryAttention, positions=False).state_dict()
    with torch.device("meta"):
        model = GPT(attention=RotaryAttention, positions=False)
    model._apply(lambda tensor: torch.zeros_like(tensor, device="cpu"))
    print(model.load_state_dict(checkpoint))
    if args.fix:
        for block in model.h:
            block.attn.inv_freq = block.attn.frequencies(16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    for step, rows in enumerate(batches(Sentences(768), epochs=2, batch=16)):
        loss = next_token_loss(model(rows[:, :-1]), rows[:, 1:])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 20 == 0:
            say(f"step {step} loss {loss.item():.4f}")
    say(f"end: inv_freq adds up to {model.h[0].attn.inv_freq.sum().item():.3f}")


main()
