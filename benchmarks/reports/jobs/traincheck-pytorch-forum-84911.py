"""All but batch norm is frozen, the new head with it, and the optimizer holds the head.

Repaired: nothing is frozen, and the optimizer holds the model.
"""

import torch
from command import options, say
from torch import nn
from torch.nn import functional as F


class Network(nn.Module):
    def __init__(self, classes=20):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16)
        self.conv2, self.bn2 = nn.Conv2d(16, 32, 3), nn.BatchNorm2d(32)
        self.fc = nn.Linear(32, classes)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.bn1(self.conv1(x))), 2)
        return self.fc(F.relu(self.bn2(self.conv2(x))).mean((2, 3)))


def main():
    args = options(steps=80)
    model = Network()
    if not args.fix:
        for name, p in model.named_parameters():
            if "bn" not in name:
                p.requires_grad = False
    optimizer = torch.optim.Adam((model if args.fix else model.fc).parameters(), lr=2e-3)
    draw = torch.Generator().manual_seed(3)
    patterns = torch.randn(20, 3, 16, 16, generator=draw)
    labels = torch.randint(0, 20, (512,), generator=draw)
    images = patterns[labels] + 0.5 * torch.randn(512, 3, 16, 16, generator=draw)
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(images, labels), 16, shuffle=True)
    head, step = model.fc.weight.detach().clone(), 0
    while step < args.steps:
        for x, y in loader:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            say(step, loss)
            step += 1
            if step == args.steps:
                break
    if torch.equal(head, model.fc.weight):
        print("the head is as it was drawn")


main()
