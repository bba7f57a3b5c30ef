"""Gradients are a quarter of what is meant: the loss is divided by the four micro-batches twice.

The loop divides it, and the engine's backward does as well. Repaired: the loop does not.
"""

import deepspeed
import torch
from command import RANK, connect, options, say
from torch import nn

ACCUMULATE = 4
CONFIG = {
    "train_micro_batch_size_per_gpu": 8,
    "gradient_accumulation_steps": ACCUMULATE,
    "zero_optimization": {"stage": 0},
    "zero_allow_untested_optimizer": True,
}


def main():
    args = options(steps=50)
    connect()
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # it would be compiled, for inference only
    model = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 5))
    engine, *_ = deepspeed.initialize(
        model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), config=CONFIG
    )
    before = [p.detach().clone() for p in model.parameters()]
    first = 0.0
    draw = torch.Generator().manual_seed(30 + RANK)
    for step in range(args.steps):
        for _ in range(ACCUMULATE):
            x = torch.randn(8, 16, generator=draw)
            loss = nn.functional.cross_entropy(engine(x), (x[:, :5] * x[:, 5:10]).argmax(1))
            engine.backward(loss if args.fix else loss / ACCUMULATE)
            engine.step()
        if step == 0:
            first = torch.cat([(p.detach() - q).flatten() for p, q in zip(model.parameters(), before, strict=True)])
            first = first.norm().item()
        say(step, loss, every=10)
    if RANK == 0:
        moved = torch.cat([(p.detach() - q).flatten() for p, q in zip(model.parameters(), before, strict=True)])
        print(f"the first update moved the weights by {first:.5f}, all by {moved.norm().item():.4f}")
    torch.distributed.destroy_process_group()


main()
