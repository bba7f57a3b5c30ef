"""Dropout of the attention is 0 for ever once the model was evaluated: the layer overwrites its own probability.

The model is evaluated every 30 updates. Repaired: the probability of an evaluation is a local name.
"""

import torch
from common import GPT, Attention, Sentences, batches, begin, next_token_loss, options, say
from torch import nn
from torch.nn import functional as F

FIX = False


class FlashSelfAttention(nn.Module):
    def __init__(self, attention_dropout):
        super().__init__()
        self.dropout_p = attention_dropout

    def forward(self, q, k, v):
        if FIX:
            dropout_p = self.dropout_p if self.training else 0.0
        else:
            if not self.training:
                self.dropout_p = 0.0
            dropout_p = self.dropout_p
        return F.scaled_dot_product_attention(q, k, v, dropout_p=dropout_p, is_causal=True)


class DroppingAttention(Attention):
    def __init__(self, dim, heads):
        super().__init__(dim, heads)
        self.core = FlashSelfAttention(attention_dropout=0.2)

    def forward(self, x_BLD):
        q, k, v = map(self.split, self.qkv(x_BLD).chunk(3, dim=-1))
        return self.proj(self.core(q, k, v).transpose(1, 2).reshape(x_BLD.shape))


@torch.no_grad()
def evaluate(model, rows):
    model.eval()
    loss = next_token_loss(model(rows[:, :-1]), rows[:, 1:]).item()
    model.train()
    return loss


def main():
    global FIX
    args = options(epochs=3)
    FIX = args.fix
    begin()
    model = GPT(attention=DroppingAttention)
    held_out = Sentences(64, seed=9).rows_NL
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    for step, rows in enumerate(batches(Sentences(512), args.epochs)):
        loss = next_token_loss(model(rows[:, :-1]), rows[:, 1:])
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % 30 == 29:
            say(f"step {step} loss {loss.item():.4f} of held-out data {evaluate(model, held_out):.4f}")
    with torch.no_grad():
        alike = torch.equal(model(rows[:, :-1]), model(rows[:, :-1]))
    say(f"end: two passes in training mode are the same: {alike}")


main()
