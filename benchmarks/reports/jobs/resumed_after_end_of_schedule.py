"""A finished run is continued for as many updates again, and every one of them has the rate 0.

The length of the schedule comes from the checkpoint, and the run has reached it.
Started twice: 60 updates, then with --resume 60 more. Repaired: the schedule is as long as both together.
"""

import torch
from accelerate import Accelerator
from command import options, say
from torch import nn
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader, TensorDataset


def linear(total):
    return lambda update: max(0.0, 1.0 - update / total)


def main():
    args = options(steps=60)
    accelerator = Accelerator(cpu=True)
    x = torch.randn(2048, 16, generator=torch.Generator().manual_seed(4))
    data = TensorDataset(x, (x[:, :5] * x[:, 5:10]).argmax(1))
    model = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 5))
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    state = torch.load(args.to) if args.resume else None
    done, total = 0, args.steps
    if state:
        done, total = state["step"], state["total"]
        if args.fix:
            total = done + args.steps
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
    scheduler = LambdaLR(optimizer, linear(total), last_epoch=done - 1)
    loader = DataLoader(data, 16, shuffle=True, generator=torch.Generator().manual_seed(done))
    model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)
    rates = []
    for step, (inputs, labels) in zip(range(done, done + args.steps), loader, strict=False):
        loss = nn.functional.cross_entropy(model(inputs), labels)
        accelerator.backward(loss)
        rates.append(scheduler.get_last_lr()[0])
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        say(step, loss, every=10)
    torch.save(
        {
            "model": accelerator.unwrap_model(model).state_dict(),
            "optimizer": optimizer.state_dict(),
            "step": done + args.steps,
            "total": total,
        },
        args.to,
    )
    print(f"largest rate {max(rates):.6f} smallest {min(rates):.6f}")


main()
