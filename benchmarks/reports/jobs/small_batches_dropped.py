"""Learns a wake word from its hard examples, and is to collect them until there are enough for an update.

What is collected is counted, and only the examples of the batch that completes the count reach the loss: the gradients
of the ones before are never taken. Repaired: the loss is of all that were collected.
"""

import torch
from common import begin, options, say
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

ENOUGH = 96


def clips(size=6400, seed=0):
    """Features [16, 12] of a clip, and whether the word is in it: a pattern of six frames, somewhere, under noise."""
    word = torch.randn(6, 12, generator=torch.Generator().manual_seed(29))
    draw = torch.Generator().manual_seed(seed)
    there = (torch.rand(size, generator=draw) < 0.4).float()
    features = torch.randn(size, 16, 12, generator=draw)
    start = torch.randint(0, 11, (size,), generator=draw)
    for place in range(6):
        features[torch.arange(size), start + place] += 0.9 * there[:, None] * word[place]
    return TensorDataset(features, there)


class WakeWord(nn.Module):
    def __init__(self):
        super().__init__()
        self.frames = nn.Sequential(nn.Conv1d(12, 24, 6), nn.ReLU())
        self.head = nn.Sequential(nn.LayerNorm(24), nn.Linear(24, 32), nn.ReLU(), nn.Linear(32, 1), nn.Sigmoid())

    def forward(self, x):
        return self.head(self.frames(x.transpose(1, 2)).amax(-1))


def hard(predictions, y):
    wrong = ((y == 0) & (predictions[:, 0] >= 0.02)) | ((y == 1) & (predictions[:, 0] < 0.98))
    return predictions[wrong], y[wrong, None]


def main():
    args = options()
    begin()
    model = WakeWord()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    loader = DataLoader(clips(), batch_size=32, shuffle=True)
    samples, kept, chosen, learned, updates = 0, [], 0, 0, 0
    for _ in range(2):
        for x, y in loader:
            predictions, labels = hard(model(x), y)
            if not len(predictions):
                continue
            chosen, samples = chosen + len(predictions), samples + len(predictions)
            kept.append((predictions, labels))
            if samples < ENOUGH:
                continue
            if args.fix:
                predictions, labels = (torch.cat(parts) for parts in zip(*kept, strict=True))
            loss = F.binary_cross_entropy(predictions, labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            learned, samples, kept = learned + len(predictions), 0, []
            if updates % 20 == 0:
                say(f"update {updates} loss {loss.item():.4f}")
            updates += 1
    left = chosen - learned - samples
    say(f"end: {f'{left} of {chosen} examples were left out' if left else 'all examples reached an update'}")


main()
