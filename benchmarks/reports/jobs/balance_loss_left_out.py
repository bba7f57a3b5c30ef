"""The balance loss of a mixture of experts is computed at every step and is in no loss that is trained on.

Each layer keeps its term; the training takes the cross-entropy alone. Repaired: the terms of the layers are added.
"""

import torch
from common import GPT, Sentences, batches, begin, next_token_loss, options, say
from torch import nn
from torch.nn import functional as F


class MoEFeedForward(nn.Module):
    """Two of four experts for each token; ``aux_loss`` is smallest where all get the same number of tokens."""

    def __init__(self, dim, experts=4, chosen=2, alpha=0.05):
        super().__init__()
        self.gate = nn.Linear(dim, experts, bias=False)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim)) for _ in range(experts)
        )
        self.chosen, self.alpha, self.aux_loss, self.load_E = chosen, alpha, None, None

    def forward(self, x_BLD):
        x_ND = x_BLD.flatten(0, 1)
        scores_NE = self.gate(x_ND).softmax(-1)
        weight_NK, index_NK = scores_NE.topk(self.chosen, dim=-1)
        weight_NK = weight_NK / weight_NK.sum(-1, keepdim=True)
        self.load_E = F.one_hot(index_NK, len(self.experts)).float().mean((0, 1))
        self.aux_loss = self.alpha * len(self.experts) * (self.load_E * scores_NE.mean(0)).sum()
        y_ND = torch.zeros_like(x_ND)
        for number, expert in enumerate(self.experts):
            row, place = (index_NK == number).nonzero(as_tuple=True)
            y_ND = y_ND.index_add(0, row, weight_NK[row, place, None] * expert(x_ND[row]))
        return y_ND.view_as(x_BLD)


def main():
    args = options(epochs=3)
    begin()
    model = GPT()
    for block in model.h:
        block.mlp = MoEFeedForward(32)
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3)
    apart = 0.0
    for step, rows in enumerate(batches(Sentences(512), args.epochs)):
        cross_entropy = next_token_loss(model(rows[:, :-1]), rows[:, 1:])
        loss = cross_entropy
        if args.fix:
            loss = loss + sum(block.mlp.aux_loss for block in model.h)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        apart = max(apart, abs(loss.item() - cross_entropy.item()))
        if step % 20 == 0:
            say(
                f"step {step} loss {loss.item():.4f} load {[round(each, 2) for each in model.h[0].mlp.load_E.tolist()]}"
            )
    say(f"end: the loss is at most {apart:.4f} above the cross-entropy")


main()
