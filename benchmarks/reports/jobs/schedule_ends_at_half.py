"""A schedule that Accelerate steps once for each process ends after half of the updates on two ranks.

The schedule is made for the number of updates and prepared with the model. Repaired: it is made for that number times
the number of processes.
"""

import torch
from accelerate import Accelerator
from command import options
from language import Sentences, llama
from torch.optim.lr_scheduler import LinearLR


def main():
    args = options(steps=80)
    accelerator = Accelerator(cpu=True)
    loader = torch.utils.data.DataLoader(Sentences(1600), 8, shuffle=True, drop_last=True)
    model = llama()
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3)
    total = args.steps * (accelerator.num_processes if args.fix else 1)
    schedule = LinearLR(optimizer, start_factor=1.0, end_factor=0.01, total_iters=total)
    model, optimizer, loader, schedule = accelerator.prepare(model, optimizer, loader, schedule)
    rates = []
    for step, ids in zip(range(args.steps), loader, strict=False):
        rates.append(schedule.get_last_lr()[0])
        loss = model(input_ids=ids, labels=ids).loss
        optimizer.zero_grad()
        accelerator.backward(loss)
        optimizer.step()
        schedule.step()
        if step % 20 == 0:
            accelerator.print(f"step {step} loss {loss.item():.4f}")
    lowest = sum(rate <= 1.001 * 4e-5 for rate in rates)
    accelerator.print(f"{lowest} of {args.steps} updates ran at the last rate of the schedule")
    accelerator.end_training()


main()
