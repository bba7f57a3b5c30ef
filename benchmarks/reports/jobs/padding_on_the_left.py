"""Rows are padded on the left and positions are counted from the padding on: the same text has other positions
in each batch.

Repaired: positions are counted from the first token, by the attention mask.
"""

import torch
from command import options, say
from language import END, PAD, Sentences, gpt2


def collate(rows):
    width = max(len(row) for row in rows) + 1
    ids = torch.full((len(rows), width), PAD)
    for i, row in enumerate(rows):
        ids[i, width - len(row) - 1 :] = torch.tensor([*row.tolist(), END])
    mask = (ids != PAD).long()
    return {"input_ids": ids, "attention_mask": mask, "labels": ids.masked_fill(mask == 0, -100)}


def main():
    args = options(steps=80)
    loader = torch.utils.data.DataLoader(
        Sentences(1024, lengths=(5, 30)), 16, shuffle=True, drop_last=True, collate_fn=collate
    )
    model = gpt2()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    step, first = 0, []
    while step < args.steps:
        for batch in loader:
            if args.fix:
                batch["position_ids"] = (batch["attention_mask"].cumsum(1) - 1).clamp(min=0)
            loss = model(**batch).loss
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            places = batch.get("position_ids", torch.arange(batch["input_ids"].shape[1]).expand_as(batch["input_ids"]))
            first += places[batch["attention_mask"].cumsum(1) == 1].tolist()
            say(step, loss)
            step += 1
            if step == args.steps:
                break
    print(f"the first token of a text has {len(set(first))} different positions")


main()
