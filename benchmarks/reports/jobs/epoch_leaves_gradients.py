"""An epoch leaves gradients of its last batches to the next: its length is no multiple of the accumulation steps.

45 batches make an epoch and 8 an update: the first update of an epoch takes the 5 batches that the last one left, and 8
more. Repaired: what an epoch leaves is an update of its own, a mean over those batches.
"""

import torch
from command import options, say
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

ACCUMULATE = 8


def main():
    args = options(epochs=14)
    x = torch.randn(45 * 16, 20, generator=torch.Generator().manual_seed(4))
    y = (x[:, :5] + 0.5 * x[:, 5:10]).argmax(1)
    loader = DataLoader(TensorDataset(x, y), batch_size=16, shuffle=True)
    model = nn.Sequential(nn.Linear(20, 64), nn.GELU(), nn.Linear(64, 5))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
    step, waiting, most = 0, 0, 0
    for _ in range(args.epochs):
        for index, (inputs, label) in enumerate(loader):
            left = len(loader) - index // ACCUMULATE * ACCUMULATE
            parts = min(ACCUMULATE, left) if args.fix else ACCUMULATE
            loss = F.cross_entropy(model(inputs), label)
            (loss / parts).backward()
            waiting += 1
            if (index + 1) % ACCUMULATE == 0 or (args.fix and index + 1 == len(loader)):
                optimizer.step()
                optimizer.zero_grad()
                most, waiting = max(most, waiting), 0
                say(step, loss)
                step += 1
    print(f"updates took at most {most} batches")


main()
