"""Trains a speech model on preferences (DPO); the mask of the log-probabilities is upside down.

It is true where the target is to be ignored, so that the prompts and paddings are counted and the answers are not.
Repaired: it is true where there is an answer.
"""

import argparse
import copy

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

WORDS, PROMPT, IGNORE = 24, 5, -100


def preferences(size=640):
    """Prompt and answer [N, 13] and targets of both answers; a good answer goes up by one, a bad one goes anywhere."""
    draw = torch.Generator().manual_seed(33)
    prompt = torch.randint(1, WORDS, (size, PROMPT), generator=draw)
    good = 1 + (prompt[:, -1:] + torch.arange(8)) % (WORDS - 1)
    bad = torch.where(
        torch.rand(size, 8, generator=draw) < 0.7, torch.randint(1, WORDS, (size, 8), generator=draw), good
    )
    rows = []
    for answer in (good, bad):
        length = torch.randint(4, 9, (size, 1), generator=draw)
        answer = answer.masked_fill(torch.arange(8) >= length, 0)
        ids = torch.cat([prompt, answer], dim=1)
        target = ids.clone()
        target[:, :PROMPT] = IGNORE
        rows += [ids, target.masked_fill(ids == 0, IGNORE)]
    return TensorDataset(*rows)


class Speaker(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.rnn, self.out = nn.Embedding(WORDS, 32), nn.GRU(32, 64, batch_first=True), nn.Linear(64, WORDS)

    def forward(self, ids):
        return self.out(self.rnn(self.embed(ids))[0])


def log_probability(model, ids, target, fix):
    target = target[:, 1:]
    mask = target != IGNORE if fix else target == IGNORE
    each = F.log_softmax(model(ids[:, :-1]), dim=-1)
    each = each.gather(2, target.masked_fill(target == IGNORE, 0)[:, :, None])[:, :, 0]
    return (each * mask).sum(1)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--fix", action="store_true")
    args = parser.parse_args()
    torch.manual_seed(25)
    model = Speaker()
    reference = copy.deepcopy(model).eval().requires_grad_(False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    loader = DataLoader(preferences(), batch_size=32, shuffle=True)
    for epoch in range(4):
        for chosen, chosen_target, rejected, rejected_target in loader:
            gain = log_probability(model, chosen, chosen_target, args.fix)
            gain = gain - log_probability(model, rejected, rejected_target, args.fix)
            with torch.no_grad():
                base = log_probability(reference, chosen, chosen_target, args.fix)
                base = base - log_probability(reference, rejected, rejected_target, args.fix)
            loss = -F.logsigmoid(0.2 * (gain - base)).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch} loss {loss.item():.4f}", flush=True)
    logits = model(chosen[:, :-1]).detach().requires_grad_()
    log_probability(lambda ids: logits, chosen, chosen_target, args.fix).sum().backward()
    answers = logits.grad[chosen_target[:, 1:] != IGNORE].abs().sum().item()
    print(f"end: the tokens of answers {'count' if answers else 'do not count'}", flush=True)


main()
