"""Recognises activities in signals of sensors; the network ends with a softmax, and cross entropy takes another.

The loss cannot fall below 1.04 for six activities, and the gradients are small. Repaired: the network returns logits.
"""

import math

import torch
from common import begin, options, say
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset


def signals(size=960, seed=0):
    """Signals [N, 9, 64] of six activities: each its frequency and its shares of the nine sensors; and which it was."""
    shares = torch.randn(6, 9, generator=torch.Generator().manual_seed(8))
    draw = torch.Generator().manual_seed(seed)
    label = torch.randint(0, 6, (size,), generator=draw)
    angle = 2 * math.pi * (2 + label[:, None]) * torch.arange(64) / 64 + 6.28 * torch.rand(size, 1, generator=draw)
    signal = shares[label][:, :, None] * angle.sin()[:, None, :]
    return TensorDataset(signal + torch.randn(size, 9, 64, generator=draw), label)


class Network(nn.Module):
    def __init__(self, logits):
        super().__init__()
        self.logits = logits
        self.conv1 = nn.Sequential(nn.Conv1d(9, 24, 9), nn.ReLU(), nn.MaxPool1d(2))
        self.conv2 = nn.Sequential(nn.Conv1d(24, 32, 9), nn.ReLU(), nn.MaxPool1d(2))
        self.fc1 = nn.Sequential(nn.Linear(32 * 10, 64), nn.ReLU())
        self.fc2 = nn.Linear(64, 6)

    def forward(self, x):
        out = self.fc2(self.fc1(self.conv2(self.conv1(x)).flatten(1)))
        return out if self.logits else F.softmax(out, dim=1)


def main():
    args = options()
    begin()
    model = Network(logits=args.fix)
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    loader = DataLoader(signals(), batch_size=32, shuffle=True)
    for epoch in range(4):
        right = total = 0
        for sample, target in loader:
            output = model(sample)
            loss = criterion(output, target)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            right += (output.argmax(1) == target).sum().item()
            total += len(target)
        say(f"epoch {epoch} loss {loss.item():.4f} accuracy {right / total:.3f}")
    sums = output.sum(1)
    say(f"end: the outputs of a sample {'sum to one' if torch.allclose(sums, torch.ones(())) else 'are logits'}")


main()
