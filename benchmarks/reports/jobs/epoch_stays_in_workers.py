"""An iterable dataset that shuffles by its epoch, with persistent workers: set_epoch reaches no worker.

The workers hold copies of the dataset, in which it is epoch 0 for ever. Repaired: workers that end with the epoch.
"""

import torch
from common import Points, begin, options, say
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, IterableDataset, get_worker_info


class Stream(IterableDataset):
    def __init__(self, data, seed=0):
        self.data, self.seed, self.epoch = data, seed, 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        order = torch.randperm(len(self.data), generator=torch.Generator().manual_seed(self.seed + self.epoch))
        worker = get_worker_info()
        yield from (self.data[int(place)] for place in order[worker.id :: worker.num_workers])


def main():
    args = options()
    begin()
    stream = Stream(Points(640))
    loader = DataLoader(stream, batch_size=20, num_workers=2, persistent_workers=not args.fix)
    model = nn.Sequential(nn.Linear(20, 48), nn.ReLU(), nn.Linear(48, 5))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    begins = []
    for epoch in range(4):
        stream.set_epoch(epoch)
        for batch, (x, label) in enumerate(loader):
            if batch == 0:
                begins.append(x)
            loss = F.cross_entropy(model(x), label)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        say(f"epoch {epoch} loss {loss.item():.4f}")
    say(f"end: epochs begin {'alike' if torch.equal(begins[1], begins[2]) else 'unlike'}")


main()
