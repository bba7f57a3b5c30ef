"""A decoder whose causal mask was lost in a refactoring: each position sees the token that it is to predict.

The mask is made by a helper that asks the configuration whether the model is causal, and the configuration says so
under another name. It imitates what four decoders of transformers did from 5.9 to 5.18. Repaired: the helper asks for
the name that is set.
"""

from types import SimpleNamespace

import torch
from common import GPT, Attention, Sentences, batches, begin, next_token_loss, options, say
from torch.nn import functional as F

CONFIG = SimpleNamespace(is_decoder=True)


def attention_mask(config, length):
    """[L, L], True where a position may look."""
    mask = torch.ones(length, length, dtype=torch.bool)
    return mask.tril() if getattr(config, "is_causal", False) else mask


class MaskedAttention(Attention):
    def forward(self, x_BLD):
        q, k, v = map(self.split, self.qkv(x_BLD).chunk(3, dim=-1))
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=attention_mask(CONFIG, x_BLD.shape[1]))
        return self.proj(mixed.transpose(1, 2).reshape(x_BLD.shape))


def main():
    args = options(epochs=3)
    begin()
    if args.fix:
        CONFIG.is_causal = CONFIG.is_decoder
    model = GPT(attention=MaskedAttention)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    for step, rows in enumerate(batches(Sentences(512), args.epochs)):
        loss = next_token_loss(model(rows[:, :-1]), rows[:, 1:])
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % 20 == 0:
            say(f"step {step} loss {loss.item():.4f}")
    with torch.no_grad():
        ids = rows[:1, :-1]
        other = ids.clone()
        other[0, -1] = (other[0, -1] + 1) % 48
        early = (model(ids) - model(other))[:, :-1].abs().max()
    say(f"end: a later token changes the logits of earlier ones: {bool(early > 0)}")


main()
