"""Tags words, eight micro-batches an update; their losses are not divided by eight.

Gradients are the sum of eight means, so that the rate is eight times what was meant. Repaired: each loss is divided.
"""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

ACCUMULATE = 8


def words(size=1280):
    draw = torch.Generator().manual_seed(10)
    letters = torch.randint(0, 20, (size, 10), generator=draw)
    kind = (letters[:, -1] % 4 + 2 * (letters[:, 0] > 9).long()) % 4
    return TensorDataset(letters, kind)


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(20, 16)
        self.net = nn.Sequential(nn.Flatten(), nn.Linear(160, 64), nn.ReLU(), nn.Linear(64, 4))

    def forward(self, letters):
        return self.net(self.embed(letters))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--fix", action="store_true")
    args = parser.parse_args()
    torch.manual_seed(5)
    model = Tagger()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    loader = DataLoader(words(), batch_size=16, shuffle=True)
    weight = model.net[1].weight
    for epoch in range(8):
        own = []
        for index, (letters, kind) in enumerate(loader):
            before = 0 if weight.grad is None else weight.grad.clone()
            loss = nn.functional.cross_entropy(model(letters), kind)
            (loss / ACCUMULATE if args.fix else loss).backward()
            own.append((weight.grad - before) * (ACCUMULATE if args.fix else 1))
            if (index + 1) % ACCUMULATE == 0:
                times = (weight.grad.norm() / (sum(own) / ACCUMULATE).norm()).item()
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)
                own = []
        print(f"epoch {epoch} loss {loss.item():.4f}", flush=True)
    print(f"end: the gradients of an update are {times:.1f} times the mean of its micro-batches", flush=True)


main()
