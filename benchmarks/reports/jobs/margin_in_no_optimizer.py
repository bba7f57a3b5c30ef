"""Learns to tell faces apart with an angular margin, whose class centres no optimizer has.

The margin is a module beside the network, with a weight of its own, and the optimizer holds the network's parameters.
Repaired: it holds both.
"""

import argparse

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset


def faces(size=960):
    draw = torch.Generator().manual_seed(19)
    person = torch.randint(0, 12, (size,), generator=draw)
    return TensorDataset(torch.randn(12, 48, generator=draw)[person] + torch.randn(size, 48, generator=draw), person)


class Margin(nn.Module):
    def __init__(self, features, classes, scale=8.0, margin=0.2):
        super().__init__()
        self.scale, self.margin = scale, margin
        self.W = nn.Parameter(torch.empty(classes, features))
        nn.init.xavier_uniform_(self.W)

    def forward(self, feature, label):
        cosine = F.linear(F.normalize(feature), F.normalize(self.W)).clamp(-0.999, 0.999)
        angle = cosine.acos() + self.margin * F.one_hot(label, len(self.W))
        return self.scale * angle.cos()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--fix", action="store_true")
    args = parser.parse_args()
    torch.manual_seed(15)
    model = nn.Sequential(nn.Linear(48, 64), nn.ReLU(), nn.Linear(64, 16))
    metric_fc = Margin(16, 12)
    trained = [*model.parameters(), *metric_fc.parameters()] if args.fix else model.parameters()
    optimizer = torch.optim.SGD(trained, lr=0.05, momentum=0.9, weight_decay=1e-4)
    before = metric_fc.W.detach().clone()
    loader = DataLoader(faces(), batch_size=32, shuffle=True)
    for epoch in range(3):
        for face, person in loader:
            loss = F.cross_entropy(metric_fc(model(face), person), person)
            optimizer.zero_grad()
            metric_fc.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch} loss {loss.item():.4f}", flush=True)
    print(
        f"end: the class centres {'are as they were drawn' if torch.equal(before, metric_fc.W) else 'moved'}",
        flush=True,
    )


main()
