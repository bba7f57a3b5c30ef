"""At a restart the optimizer is loaded, then a schedule is made, which sets its first rate, then that is loaded.

The cosine goes on from its place, and multiplies a rate that is the first of the warm-up again. Started twice: 60 of
120 updates, then with --resume the rest. Repaired: the optimizer is loaded after the schedule was made.
"""

import torch
from common import Points, batches, begin, options, say
from torch import nn
from torch.nn import functional as F
from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR, SequentialLR

FILE = "checkpoint.pt"


def main():
    args = options(lr=1e-2)
    begin()
    model = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 5))
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
    saved = torch.load(FILE) if args.resume else None
    if saved is not None:
        model.load_state_dict(saved["model"])
        if not args.fix:
            optimizer.load_state_dict(saved["optimizer"])
    parts = [LinearLR(optimizer, start_factor=0.1, total_iters=10), CosineAnnealingLR(optimizer, T_max=110)]
    schedule = SequentialLR(optimizer, parts, milestones=[10])
    if saved is not None:
        if args.fix:
            optimizer.load_state_dict(saved["optimizer"])
        schedule.load_state_dict(saved["schedule"])
    if args.resume:
        say(f"end: goes on at rate {optimizer.param_groups[0]['lr']:.4f}")
    for step, (x, label) in enumerate(batches(Points(960), epochs=1, batch=16, seed=7 if args.resume else 5)):
        loss = F.cross_entropy(model(x), label)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        if step % 20 == 0:
            say(f"step {step} loss {loss.item():.4f} rate {optimizer.param_groups[0]['lr']:.5f}")
    if not args.resume:
        state = {"model": model, "optimizer": optimizer, "schedule": schedule}
        torch.save({name: part.state_dict() for name, part in state.items()}, FILE)


main()
