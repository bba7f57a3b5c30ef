"""A tagger pads labels with 0 and ignores 0 in its loss, and 0 is a class as well: it is never trained.

Repaired: padded labels are -100, which is what is ignored.
"""

import torch
from common import Sentences, batches, begin, options, say
from torch import nn

ARGS = options()
IGNORED = -100 if ARGS.fix else 0


class Tagger(nn.Module):
    def __init__(self, tags=5):
        super().__init__()
        self.embedding = nn.Embedding(48, 24)
        self.lstm = nn.LSTM(24, 24, batch_first=True, bidirectional=True)
        self.classifier = nn.Linear(48, tags)

    def forward(self, ids):
        return self.classifier(self.lstm(self.embedding(ids))[0])


def tagged(rows):
    """Rows of 12 to 24 tokens and their tags 0 to 4, four of ten tokens being 0: "outside"."""
    tags = (rows % 10 - 5).clamp(min=0) % 5
    outside = torch.arange(rows.shape[1]) >= (12 + rows[:, -1] % 12)[:, None]
    return rows.masked_fill(outside, 0), tags.masked_fill(outside, IGNORED)


def main():
    begin()
    model = Tagger()
    criterion = nn.CrossEntropyLoss(ignore_index=IGNORED)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for step, rows in enumerate(batches(Sentences(640, first=1), epochs=2, batch=16)):
        ids, tags = tagged(rows)
        logits = model(ids)
        loss = criterion(logits.flatten(0, 1), tags.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 20 == 0:
            say(f"step {step} loss {loss.item():.4f}")
    right = (logits.argmax(-1) == 0)[(tags == 0) & (ids > 0)].float().mean()
    say(f"end: of the tokens of class 0 {'some are' if right > 0 else 'none is'} predicted as class 0")


main()
