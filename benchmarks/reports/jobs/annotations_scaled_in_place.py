"""A detector whose mixup scales the boxes of the second picture in place: they are those that the data set keeps.

Each time a picture is chosen its boxes are scaled once more, and fit it no longer. Repaired: a copy of them.
"""

import random

import torch
from common import begin, options, say
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

SIDE = 16


class Detection(Dataset):
    """Pictures [1, 16, 16] of one bright rectangle, and the rectangle, read once: left, top, right, bottom."""

    def __init__(self, size=576, seed=0):
        draw = torch.Generator().manual_seed(seed)
        sides = 3 + 5 * torch.rand(size, 2, generator=draw)
        first = torch.rand(size, 2, generator=draw) * (SIDE - sides)
        self.annotations = [box[None] for box in torch.cat((first, first + sides), 1)]
        place = torch.arange(SIDE) + 0.5
        inside_x = (place > first[:, :1]) & (place < (first + sides)[:, :1])
        inside_y = (place > first[:, 1:]) & (place < (first + sides)[:, 1:])
        self.pictures = (inside_y[:, :, None] & inside_x[:, None, :]).float()[:, None]
        self.pictures += 0.2 * torch.randn(self.pictures.shape, generator=draw)

    def __len__(self):
        return len(self.annotations)

    def pull_item(self, place):
        return self.pictures[place], self.annotations[place]


def adjust_box_anns(boxes, scale):
    boxes *= scale
    return boxes.clamp_(0, SIDE)


class Mixup(Dataset):
    """Mixes every second picture with another one, which is made smaller."""

    def __init__(self, data, fix):
        self.data, self.fix = data, fix

    def __len__(self):
        return len(self.data)

    def __getitem__(self, place):
        picture, boxes = self.data.pull_item(place)
        if random.random() < 0.5:
            other, cp_boxes = self.data.pull_item(random.randrange(len(self.data)))
            scale = random.choice((0.5, 0.625, 0.75, 0.875))
            small = F.interpolate(other[None], scale_factor=scale, mode="bilinear")[0]
            padded = torch.zeros_like(picture)
            padded[:, : small.shape[1], : small.shape[2]] = small
            picture = 0.5 * picture + 0.5 * padded
            boxes = torch.cat((boxes, adjust_box_anns(cp_boxes.clone() if self.fix else cp_boxes, scale)))
        return picture, self.rendered(boxes)

    @staticmethod
    def rendered(boxes):
        """Target [5, 8, 8]: where a centre is, and the box there in parts of the picture."""
        target = torch.zeros(5, 8, 8)
        for left, top, right, bottom in boxes.tolist():
            row, column = (min(7, int((low + high) / 4)) for low, high in ((top, bottom), (left, right)))
            target[:, row, column] = torch.tensor([1.0, left / SIDE, top / SIDE, right / SIDE, bottom / SIDE])
        return target


def main():
    args = options()
    begin()
    random.seed(0)
    data = Detection()
    first = torch.cat(data.annotations)
    model = nn.Sequential(
        nn.Conv2d(1, 24, 5, stride=2, padding=2), nn.ReLU(), nn.Conv2d(24, 32, 5, padding=2), nn.ReLU(),
        nn.Conv2d(32, 32, 5, padding=2), nn.ReLU(), nn.Conv2d(32, 5, 1),
    )  # fmt: skip
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    loader = DataLoader(Mixup(data, args.fix), batch_size=24, shuffle=True)
    for epoch in range(5):
        for picture, target in loader:
            out = model(picture)
            there = target[:, 0] > 0
            found = F.binary_cross_entropy_with_logits(out[:, 0], target[:, 0])
            box = F.l1_loss(out[:, 1:].movedim(1, -1)[there], target[:, 1:].movedim(1, -1)[there])
            loss = 10 * found + 5 * box
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        say(f"epoch {epoch} loss {loss.item():.4f} box {box.item():.4f}")
    changed = (torch.cat(data.annotations) != first).any(1).sum().item()
    say(f"end: {'no box has' if not changed else f'{changed} boxes have'} changed in the data set")


main()
