"""A loader's parameters leave shuffle out, and the dataset lies sorted by class: a batch holds one class.

The loss jumps whenever the class changes. Repaired: shuffle=True.
"""

import torch
from common import Pictures, begin, end, options, say
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset


class Folder(Dataset):
    """Pictures as a folder of each class has them: all of class 0, then all of class 1, and so on."""

    def __init__(self, size):
        pictures = Pictures(size)
        order = pictures.label_N.argsort(stable=True)
        self.pictures, self.label_N = pictures.pictures[order], pictures.label_N[order]

    def __len__(self):
        return len(self.label_N)

    def __getitem__(self, place):
        return self.pictures[place], int(self.label_N[place])


def main():
    args = options()
    begin()
    parameters = {"batch_size": 16} | ({"shuffle": True} if args.fix else {})
    loader = DataLoader(Folder(640), **parameters)
    model = nn.Sequential(nn.Flatten(), nn.Linear(144, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-4)
    classes = []
    for epoch in range(3):
        for x, label in loader:
            classes.append(len(label.unique()))
            loss = F.cross_entropy(model(x), label)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        say(f"epoch {epoch} loss {loss.item():.4f}")
    say(f"end: {'one class' if sum(classes) < 1.5 * len(classes) else 'many classes'} in a batch")
    end()


main()
