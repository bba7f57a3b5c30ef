"""Self-distillation of a segmentation model: kl_div is given the student's softmax where it wants its logarithm.

What comes out is negative, and is least where the student is certain of the teacher's best class, whatever the
teacher's doubts. Repaired: log_softmax. The teacher's weights are set as if they had been loaded.
"""

import torch
from common import begin, options, say
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

LEVELS = (-1.0, 0.0, 1.0)


def scenes(size, seed):
    """Pictures [1, 16, 16] of three kinds of ground under noise, and the kind of each pixel."""
    draw = torch.Generator().manual_seed(seed)
    rough = torch.randn(size, 1, 4, 4, generator=draw)
    smooth = F.interpolate(rough, size=(16, 16), mode="bilinear")[:, 0]
    label = (smooth > -0.3).long() + (smooth > 0.3).long()
    picture = torch.tensor(LEVELS)[label] + 0.6 * torch.randn(size, 16, 16, generator=draw)
    return TensorDataset(picture[:, None], label)


def teacher():
    """Looks at the mean of 3 x 3 pixels."""
    blur, head = nn.Conv2d(1, 1, 3, padding=1, bias=False), nn.Conv2d(1, 3, 1)
    with torch.no_grad():
        blur.weight.fill_(1 / 9)
        head.weight.copy_(6 * torch.tensor(LEVELS).view(3, 1, 1, 1))
        head.bias.copy_(-3 * torch.tensor(LEVELS).square())
    return nn.Sequential(blur, head).eval().requires_grad_(False)


def main():
    args = options(distillation=1.0)
    begin()
    large = teacher()
    model = nn.Sequential(
        nn.Conv2d(1, 12, 3, padding=1), nn.ReLU(), nn.Conv2d(12, 12, 3, padding=1), nn.ReLU(), nn.Conv2d(12, 3, 1)
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    loader = DataLoader(scenes(512, seed=3), batch_size=16, shuffle=True, drop_last=True)
    step, least = 0, 0.0
    for _ in range(3):
        for picture, label in loader:
            out = model(picture)
            loss = F.cross_entropy(out, label)
            student = F.log_softmax(out, dim=1) if args.fix else F.softmax(out, dim=1)
            with torch.no_grad():
                soft = F.softmax(large(picture), dim=1)
            loss_kd = F.kl_div(student, soft, reduction="none").sum(1).mean()
            least = min(least, loss_kd.item())
            loss = loss + args.distillation * loss_kd
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if step % 16 == 0:
                say(f"step {step} loss {loss.item():.4f} kd {loss_kd.item():.4f}")
            step += 1
    say(f"end: the divergence was {'negative' if least < -1e-3 else 'never below zero'}")


main()
