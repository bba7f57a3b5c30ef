"""A training job on one or two ranks with a fault of a device or of a rank: `devices_job.py KIND [RATE]`.

Rank r has the r-th device of TRUELINE_DEVICES. With ``device``, one bit of one element of a product is flipped on
device 3, in RATE of the runs; with ``rank``, on rank 1 whatever its device; with ``everywhere``, on all; with ``none``,
nowhere.
"""

import os
import random
import sys

import torch
import torch.distributed as dist
from torch import nn

KIND = sys.argv[1]
RATE = float(sys.argv[2]) if len(sys.argv) > 2 else 1.0
RANK = int(os.environ.get("RANK", "0"))
DEVICE = os.environ["TRUELINE_DEVICES"].split(",")[RANK]
SPOILS = {"device": DEVICE == "3", "rank": RANK == 1, "everywhere": True, "none": False}[KIND]
chance = random.SystemRandom()
STEP = chance.randrange(1, 4) if SPOILS and chance.random() < RATE else -1

if "RANK" in os.environ:
    dist.init_process_group("gloo")
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))
wrapped = nn.parallel.DistributedDataParallel(model) if "RANK" in os.environ else model
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
draw = torch.Generator().manual_seed(RANK)


def flipped(module, args, output):
    bits = output.detach().clone().view(torch.int32)
    bits[chance.randrange(len(bits)), 0] ^= 1 << chance.randrange(12, 22)
    return output + (bits.view(torch.float32) - output.detach())


for step in range(6):
    x = torch.randn(32, 16, generator=draw)
    hook = model[2].register_forward_hook(flipped) if step == STEP else None
    loss = nn.functional.cross_entropy(wrapped(x), x.argmax(1) % 4)
    if hook:
        hook.remove()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
if "RANK" in os.environ:
    dist.destroy_process_group()
