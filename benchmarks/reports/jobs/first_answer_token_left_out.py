"""Fine-tuning on answers whose first token has no loss: the mask of the targets begins one position late.

The targets are the tokens moved by one, and the mask counts from the length of the prompt as the tokens do. Repaired:
it begins at the length of the prompt less one.
"""

import torch
from command import options, say
from language import Sentences, llama
from torch.nn import functional as F


def collate(rows, prompt, late):
    ids = torch.stack(rows)
    loss_mask = torch.zeros(len(rows), ids.shape[1] - 1)
    loss_mask[:, prompt - 1 + late :] = 1
    return ids[:, :-1], ids[:, 1:], loss_mask


def main():
    args = options(steps=100, prompt=5)

    def collated(rows):
        return collate(rows, args.prompt, late=0 if args.fix else 1)

    data = Sentences(1600, lengths=(14, 14))
    loader = torch.utils.data.DataLoader(data, 16, shuffle=True, drop_last=True, collate_fn=collated)
    model = llama()
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3)
    first = 0
    for step, (ids, labels, loss_mask) in zip(range(args.steps), loader, strict=False):
        logits = model(input_ids=ids).logits
        losses = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="none")
        loss = (losses * loss_mask.flatten()).sum() / loss_mask.sum()
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        first += int(loss_mask[:, args.prompt - 1].sum())
        say(step, loss)
    print(f"the first token of the answer was a target {first} times")


main()
