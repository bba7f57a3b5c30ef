"""A GPT whose attention gives its dropout to scaled_dot_product_attention whatever the mode: it drops in evaluation.

The loss of the evaluation differs from one call to the next on the same rows. Repaired: 0 unless it trains.
"""

import torch
from common import GPT, Attention, Sentences, batches, begin, next_token_loss, options, say
from torch.nn import functional as F

ARGS = options()


class DroppingAttention(Attention):
    dropout = 0.2

    def forward(self, x_BLD):
        q, k, v = map(self.split, self.qkv(x_BLD).chunk(3, dim=-1))
        dropped = self.dropout if self.training or not ARGS.fix else 0.0
        mixed = F.scaled_dot_product_attention(q, k, v, dropout_p=dropped, is_causal=True)
        return self.proj(mixed.transpose(1, 2).reshape(x_BLD.shape))


@torch.no_grad()
def evaluate(model, rows):
    model.eval()
    loss = next_token_loss(model(rows[:, :-1]), rows[:, 1:]).item()
    model.train()
    return loss


def main():
    begin()
    model = GPT(attention=DroppingAttention)
    held = Sentences(64, seed=1).rows_NL
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    for step, rows in enumerate(batches(Sentences(512), epochs=3, batch=16)):
        loss = next_token_loss(model(rows[:, :-1]), rows[:, 1:])
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        if step % 16 == 15:
            say(f"step {step} loss {loss.item():.4f} evaluation {evaluate(model, held):.4f}")
    once, twice = evaluate(model, held), evaluate(model, held)
    say(f"end: the same rows evaluate {'alike' if once == twice else 'differently'}: {once:.6f} {twice:.6f}")


main()
