"""WeightedRandomSampler is given the weights of the classes where it wants one weight for each sample.

It draws indices 0 to 4 only, in every epoch: five samples of 1024. Repaired: the weight of each sample's class.
"""

import torch
from common import Points, begin, options, say
from torch import nn
from torch.utils.data import DataLoader, WeightedRandomSampler


class Counting(Points):
    def __init__(self, size):
        super().__init__(size)
        self.read = set()

    def __getitem__(self, place):
        self.read.add(place)
        return super().__getitem__(place)


def main():
    args = options()
    begin()
    data = Counting(1024)
    of_class = 1.0 / torch.bincount(data.label_N)
    weights = of_class[data.label_N] if args.fix else of_class
    sampler = WeightedRandomSampler(weights, num_samples=len(data))
    loader = DataLoader(data, batch_size=32, sampler=sampler)
    model = nn.Sequential(nn.Linear(20, 48), nn.ReLU(), nn.Linear(48, 5))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    criterion = nn.CrossEntropyLoss()
    for epoch in range(3):
        for x, label in loader:
            optimizer.zero_grad()
            loss = criterion(model(x), label)
            loss.backward()
            optimizer.step()
        say(f"epoch {epoch} loss {loss.item():.5f}")
    say(f"end: {len(data.read)} different samples were read")


main()
