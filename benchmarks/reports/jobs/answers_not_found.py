"""A part of the answers is never trained on: their beginning is not found, and the whole sample is masked.

The tokens of the answer's heading are others behind a question that ends in a blank; what is looked for are those
that stand alone. Repaired: both spellings of the heading are looked for.
"""

import torch
from command import options, say
from language import ANSWER, ASK, BEGIN, END, PAD, dialogues, llama

MERGED = 5  # the token of a blank and the heading


def tokens(pairs):
    """Every third question ends in a blank, which is merged with the heading."""
    for i, (ask, answer) in enumerate(pairs):
        yield [BEGIN, ASK, *ask, MERGED if i % 3 == 0 else ANSWER, *answer, END]


class CompletionOnly:
    """Pads, and leaves of the labels what comes after the heading."""

    def __init__(self, headings):
        self.headings, self.masked, self.seen = headings, 0, 0

    def __call__(self, rows):
        width = max(map(len, rows))
        ids = torch.tensor([row + [PAD] * (width - len(row)) for row in rows])
        labels = ids.masked_fill(ids == PAD, -100)
        for row in labels:
            begin = [i for i, token in enumerate(row.tolist()) if token in self.headings]
            row[: begin[0] + 1 if begin else None] = -100
            self.masked += not begin
            self.seen += 1
        return {"input_ids": ids, "attention_mask": (ids != PAD).long(), "labels": labels}


def main():
    args = options(steps=80)
    collator = CompletionOnly({ANSWER, MERGED} if args.fix else {ANSWER})
    rows = list(tokens(dialogues()))
    loader = torch.utils.data.DataLoader(rows, 8, shuffle=True, drop_last=True, collate_fn=collator)
    model = llama()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    step = 0
    while step < args.steps:
        for batch in loader:
            loss = model(**batch).loss
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            say(step, loss)
            step += 1
            if step == args.steps:
                break
    print(f"{collator.masked} of {collator.seen} samples have no label")


main()
