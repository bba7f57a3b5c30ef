"""A pretrained backbone whose first stages are declared frozen is trained throughout.

The freezing is done when the model is put into training mode, and nobody does that: a new model is in it.
Repaired: the model is put into training mode before the loop.
"""

from itertools import pairwise

import torch
from command import options, say
from torch import nn
from torch.nn import functional as F


class Backbone(nn.Module):
    def __init__(self, widths=(8, 16, 16), frozen_stages=-1):
        super().__init__()
        self.frozen_stages = frozen_stages
        sizes = [1, *widths]
        self.stages = nn.ModuleList(
            nn.Sequential(nn.Conv2d(a, b, 3, padding=1), nn.BatchNorm2d(b), nn.ReLU(), nn.MaxPool2d(2))
            for a, b in pairwise(sizes)
        )

    def forward(self, x):
        for stage in self.stages:
            x = stage(x)
        return x.mean((2, 3))

    def train(self, mode=True):
        super().train(mode)
        for stage in self.stages[: max(self.frozen_stages, 0)]:
            stage.eval()
            stage.requires_grad_(False)
        return self


class Classifier(nn.Module):
    def __init__(self, frozen_stages):
        super().__init__()
        self.backbone = Backbone(frozen_stages=frozen_stages)
        self.head = nn.Linear(16, 6)

    def forward(self, x):
        return self.head(self.backbone(x))


def images(n, classes, seed):
    shapes = F.interpolate(torch.randn(classes, 1, 4, 4, generator=torch.Generator().manual_seed(7)), size=(16, 16))
    draw = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, classes, (n,), generator=draw)
    return shapes[labels] + 0.7 * torch.randn(n, 1, 16, 16, generator=draw), labels


def main():
    args = options(steps=100)
    config = {"frozen_stages": 2, "lr": 0.02}
    model = Classifier(config["frozen_stages"])
    if args.fix:
        model.train()
    before = model.backbone.stages[0][0].weight.detach().clone()
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=config["lr"], momentum=0.9)
    x, y = images(1024, 6, seed=1)
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), 16, shuffle=True, drop_last=True)
    step = 0
    while step < args.steps:
        for inputs, labels in loader:
            loss = F.cross_entropy(model(inputs), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            say(step, loss)
            step += 1
            if step == args.steps:
                break
    moved = (model.backbone.stages[0][0].weight - before).norm().item()
    print(f"the first stage moved by {moved:.4f}")


main()
