"""Packed documents see the ones before them in their row: an attention mask of ones switches the separation off.

Positions begin anew at each document, from which the model makes the mask of the row, but only where it is given none.
Repaired: no attention mask is given.
"""

import torch
from command import options, say
from language import END, Sentences, llama


def pack(documents, length):
    """Rows of whole documents with their ids and positions."""
    rows, ids, positions = [], [], []
    for document in documents:
        document = [*document.tolist(), END]
        if len(ids) + len(document) > length:
            rest = length - len(ids)
            rows.append((ids + [END] * rest, positions + list(range(rest))))
            ids, positions = [], []
        ids, positions = ids + document, positions + list(range(len(document)))
    return [{"input_ids": torch.tensor(a), "position_ids": torch.tensor(b)} for a, b in rows]


def main():
    args = options(steps=80)
    rows = pack(Sentences(2048, lengths=(6, 14)), length=48)
    loader = torch.utils.data.DataLoader(rows, 8, shuffle=True, drop_last=True)
    model = llama()
    model.config.use_cache = False
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    step = 0
    while step < args.steps:
        for batch in loader:
            labels = batch["input_ids"].masked_fill(batch["position_ids"] == 0, -100)
            mask = {} if args.fix else {"attention_mask": torch.ones_like(labels)}
            loss = model(**batch, **mask, labels=labels).loss
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            say(step, loss)
            step += 1
            if step == args.steps:
                break
    ids, positions = batch["input_ids"][:1], batch["position_ids"][:1]
    second = int((positions[0] == 0).nonzero()[1])
    other = ids.clone()
    other[:, :second] = 9
    mask = {} if args.fix else {"attention_mask": torch.ones_like(ids)}
    with torch.no_grad():
        a, b = (model(x, position_ids=positions, **mask).logits[:, second:] for x in (ids, other))
    print(f"another first document changes the second by {(a - b).abs().max().item():.4f}")


main()
