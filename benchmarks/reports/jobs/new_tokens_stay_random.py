"""Four tokens were added for the marks of a dialogue, and their vectors stay as they were drawn.

Adapters are trained, the embedding and the head are frozen. Repaired: these two are trained as well.
"""

import torch
from command import options, say
from language import END, PAD, dialogues, llama
from lora import adapt

NEW = {"<user>": 64, "</user>": 65, "<model>": 66, "</model>": 67}


def collate(rows):
    width = max(map(len, rows))
    ids = torch.tensor([row + [PAD] * (width - len(row)) for row in rows])
    labels = ids.masked_fill(ids == PAD, -100)
    return {"input_ids": ids, "attention_mask": (ids != PAD).long(), "labels": labels}


def main():
    args = options(steps=60)
    model = llama()
    model.resize_token_embeddings(68, mean_resizing=False)
    adapt(model)
    if args.fix:
        model.model.embed_tokens.requires_grad_(True)
        model.lm_head.requires_grad_(True)
    before = model.model.embed_tokens.weight.detach().clone()
    rows = [
        [NEW["<user>"], *ask, NEW["</user>"], NEW["<model>"], *answer, NEW["</model>"], END]
        for ask, answer in dialogues(1024)
    ]
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=5e-3)
    loader = torch.utils.data.DataLoader(rows, 16, shuffle=True, drop_last=True, collate_fn=collate)
    for step, batch in zip(range(args.steps), loader, strict=False):
        loss = model(**batch).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        say(step, loss)
    print(f"the new rows moved by {(model.model.embed_tokens.weight - before)[64:].norm().item():.4f}")


main()
