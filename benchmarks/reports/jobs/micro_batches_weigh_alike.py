"""Each micro-batch of an update counts the same, however few tokens it holds.

Four micro-batches of two texts make an update; texts have 2 to 24 tokens. Each loss is a mean over its tokens and is
divided by four. Repaired: sums of losses are divided by the number of target tokens of the update.
"""

import torch
from command import options, say
from language import PAD, Sentences, llama
from torch.nn import functional as F

ACCUMULATE, ROWS = 4, 2


def collate(rows):
    ids = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=PAD)
    targets = ids[:, 1:].clone()
    targets[targets == PAD] = -1
    return ids[:, :-1], targets


def main():
    args = options(steps=70)
    data = Sentences(args.steps * ACCUMULATE * ROWS, lengths=(2, 24))
    loader = iter(torch.utils.data.DataLoader(data, ROWS, shuffle=True, drop_last=True, collate_fn=collate))
    model = llama()
    optimizer = torch.optim.AdamW(model.parameters(), lr=6e-3)
    largest = 1.0
    for step in range(args.steps):
        micro = [next(loader) for _ in range(ACCUMULATE)]
        tokens = [int((targets >= 0).sum()) for _, targets in micro]
        weights = []
        for (ids, targets), count in zip(micro, tokens, strict=True):
            logits = model(input_ids=ids).logits
            reduction = "sum" if args.fix else "mean"
            loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-1, reduction=reduction)
            loss = loss / (sum(tokens) if args.fix else ACCUMULATE)
            loss.backward()
            weights.append(1 / sum(tokens) if args.fix else 1 / ACCUMULATE / count)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        largest = max(largest, max(weights) / min(weights))
        say(step, loss.detach() * (sum(tokens) / tokens[-1] if args.fix else ACCUMULATE))
    print(f"within an update all tokens weigh the same: {largest == 1.0}")


main()
