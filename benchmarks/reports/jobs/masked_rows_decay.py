"""One new token is taught to a trained embedding: the gradient of all other rows is set to zero, and AdamW decays them.

The rows that were to stay shrink at every update. Repaired: no decay for the embedding.
"""

import torch
from common import GPT, Sentences, batches, begin, next_token_loss, options, say

NEW = 47


def main():
    args = options()
    begin()
    model = GPT()
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    embedding = model.wte.weight.requires_grad_(True)
    first = embedding.detach().clone()
    optimizer = torch.optim.AdamW([embedding], lr=5e-3, weight_decay=0.0 if args.fix else 1e-2)
    others = torch.arange(len(embedding)) != NEW
    for step, rows in enumerate(batches(Sentences(640), epochs=2, batch=16)):
        rows = rows.clone()
        rows[:, 3] = NEW
        loss = next_token_loss(model(rows[:, :-1]), rows[:, 1:])
        optimizer.zero_grad()
        loss.backward()
        embedding.grad[others] = 0.0
        optimizer.step()
        if step % 20 == 0:
            say(f"step {step} loss {loss.item():.4f}")
    say(f"end: the other rows {'stayed' if torch.equal(first[others], embedding[others]) else 'moved'}")


main()
