"""Pretrained weights are loaded into the engine's model, and the first update puts the random ones back.

The engine keeps copies of the weights in float32 that it made before; updates are made to these, and written over
the model. Repaired: the weights are loaded before the engine is made.
"""

import deepspeed
import torch
from command import RANK, connect, options, say
from torch import nn

CONFIG = {
    "train_micro_batch_size_per_gpu": 16,
    "bf16": {"enabled": True},
    "zero_optimization": {"stage": 1},
    "zero_allow_untested_optimizer": True,
}


def network():
    return nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 5))


def batch(step, rank):
    draw = torch.Generator().manual_seed(2 * step + rank)
    x = torch.randn(16, 16, generator=draw)
    return x, (x[:, :5] + x[:, 5:10]).argmax(1)


def pretrained():
    """What an earlier training of the same task left."""
    torch.manual_seed(5)
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    for step in range(150):
        x, y = batch(10_000 + step, 0)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    return model.state_dict()


def main():
    args = options(steps=60)
    connect()
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # it would be compiled, for inference only
    weights = pretrained()
    torch.manual_seed(0)
    model = network()
    if args.fix:
        model.load_state_dict(weights)
    engine, *_ = deepspeed.initialize(
        model=model, optimizer=torch.optim.AdamW(model.parameters(), lr=1e-4), config=CONFIG
    )
    if not args.fix:
        engine.module.load_state_dict(weights)
    losses = []
    for step in range(args.steps):
        x, y = batch(step, RANK)
        loss = nn.functional.cross_entropy(engine(x.bfloat16()).float(), y)
        engine.backward(loss)
        engine.step()
        losses.append(loss.item())
        say(step, loss)
    if RANK == 0:
        print(f"first loss {losses[0]:.4f} second {losses[1]:.4f} mean of the last ten {sum(losses[-10:]) / 10:.4f}")
    torch.distributed.destroy_process_group()


main()
