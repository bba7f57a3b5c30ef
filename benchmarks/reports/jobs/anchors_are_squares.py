"""A small detector whose anchors should have three aspect ratios: the height is multiplied by the root, not divided.

All anchors are squares, of three sizes, and none has the shape of a tall or a flat object. Repaired: a division.
"""

import math

import torch
from common import begin, options, say
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

SIDE, STRIDE, SCALE, RATIOS = 24, 4, 8.0, (1.0, 0.5, 2.0)


def anchors(fix):
    """Centre, width and height [A * 6 * 6, 4] of all anchors, in pixels."""
    made = []
    for ratio in RATIOS:
        root = math.sqrt(ratio)
        width = SCALE * root
        height = SCALE / root if fix else SCALE * root
        places = [(place + 0.5) * STRIDE for place in range(SIDE // STRIDE)]
        made += [(x, y, width, height) for y in places for x in places]
    return torch.tensor(made)


def scenes(size=768, seed=0):
    """Pictures [1, 24, 24] of one bright rectangle: as wide as high, flat or tall; and its centre, width and height."""
    draw = torch.Generator().manual_seed(seed)
    root = torch.tensor([1.0, 0.5, 2.0])[torch.randint(0, 3, (size,), generator=draw)].sqrt()
    scale = 7 + 2 * torch.rand(size, generator=draw)
    width, height = scale * root, scale / root
    x = width / 2 + torch.rand(size, generator=draw) * (SIDE - width)
    y = height / 2 + torch.rand(size, generator=draw) * (SIDE - height)
    place = torch.arange(SIDE) + 0.5
    inside = ((place - x[:, None]).abs() < width[:, None] / 2)[:, None, :]
    inside = inside & ((place - y[:, None]).abs() < height[:, None] / 2)[:, :, None]
    picture = inside.float() + 0.3 * torch.randn(size, SIDE, SIDE, generator=draw)
    return TensorDataset(picture[:, None], torch.stack((x, y, width, height), 1))


def overlap(box, prior):
    """Intersection over union [B, A] of boxes [B, 4] and anchors [A, 4]."""
    box, prior = box[:, None], prior[None]
    high = torch.minimum(box[..., :2] + box[..., 2:] / 2, prior[..., :2] + prior[..., 2:] / 2)
    low = torch.maximum(box[..., :2] - box[..., 2:] / 2, prior[..., :2] - prior[..., 2:] / 2)
    common = (high - low).clamp(min=0).prod(-1)
    return common / (box[..., 2:].prod(-1) + prior[..., 2:].prod(-1) - common)


class Detector(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.backbone = nn.Sequential(
            nn.Conv2d(1, width, 3, stride=2, padding=1), nn.ReLU(), nn.Conv2d(width, 2 * width, 3, stride=2, padding=1),
            nn.ReLU(), nn.Conv2d(2 * width, 2 * width, 3, padding=1), nn.ReLU(),
        )  # fmt: skip
        self.object = nn.Conv2d(2 * width, len(RATIOS), 1)
        self.box = nn.Conv2d(2 * width, 4 * len(RATIOS), 1)

    def forward(self, picture):
        features = self.backbone(picture)
        box = self.box(features).unflatten(1, (len(RATIOS), 4)).movedim(2, -1)
        return self.object(features).flatten(1), box.flatten(1, 3)


def main():
    args = options()
    begin()
    priors, model = anchors(args.fix), Detector()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    loader = DataLoader(scenes(), batch_size=24, shuffle=True)
    step = 0
    for _ in range(3):
        for picture, box in loader:
            shared = overlap(box, priors)
            chosen = shared > 0.4
            chosen[torch.arange(len(box)), shared.argmax(1)] = True
            shift = (box[:, None, :2] - priors[:, :2]) / priors[:, 2:]
            target = torch.cat((shift, (box[:, None, 2:] / priors[:, 2:]).log()), -1)
            score, found = model(picture)
            conf_loss = F.binary_cross_entropy_with_logits(score, chosen.float())
            loss = 4 * conf_loss + F.smooth_l1_loss(found[chosen], target[chosen])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if step % 16 == 0:
                say(f"step {step} loss {loss.item():.4f}")
            step += 1
    squares = torch.isclose(priors[:, 2], priors[:, 3]).sum().item()
    say(f"end: {squares} of {len(priors)} anchors are squares; the best has {shared.amax(1).mean():.2f} of an object")


main()
