"""Preference training whose loss stays at 0.6931: the reference is the model that is trained.

Repaired: the reference is a copy of the model as it was.
"""

import copy

import torch
from command import options, say
from language import dialogues, llama
from torch.nn import functional as F


def log_prob(model, ids, prompt):
    """Of the tokens behind the prompt, summed."""
    logits = model(input_ids=ids).logits[:, prompt - 1 : -1].log_softmax(-1)
    return logits.gather(-1, ids[:, prompt:, None]).squeeze(-1).sum(-1)


def main():
    args = options(steps=60)
    model = llama()
    reference = copy.deepcopy(model) if args.fix else model
    pairs = dialogues(1024, answer=(6, 6))
    ask = torch.tensor([a for a, _ in pairs])
    chosen = torch.cat([ask, torch.tensor([b for _, b in pairs])], 1)
    rejected = torch.cat([ask, torch.tensor([b[::-1] for _, b in pairs])], 1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4)
    data = torch.utils.data.TensorDataset(chosen, rejected)
    loader = torch.utils.data.DataLoader(data, 16, shuffle=True, drop_last=True)
    for step, (good, bad) in zip(range(args.steps), loader, strict=False):
        both = torch.cat([good, bad])
        policy = log_prob(model, both, 6)
        with torch.no_grad():
            base = log_prob(reference, both, 6)
        reward = 0.1 * (policy - base)
        loss = -F.logsigmoid(reward[:16] - reward[16:]).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        say(step, loss)
    print(f"the last loss is {loss.item():.6f}")


main()
