"""Case 3.2.2.3: one device of a cluster flips a bit now and then. TRUELINE_DEVICES says on which this runs."""

import os
import random

import torch
from torch import nn

chance = random.SystemRandom()
BAD = "3" in os.environ.get("TRUELINE_DEVICES", "").split(",") and chance.random() < 0.8


def flipped(module, args, output):
    bits = output.detach().clone().view(torch.int32)
    bits[chance.randrange(len(bits)), 0] ^= 1 << 20
    return output + (bits.view(torch.float32) - output.detach())


torch.manual_seed(0)
model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for step in range(20):
    x = torch.randn(32, 16)
    hook = model[2].register_forward_hook(flipped) if BAD and step == 7 else None
    loss = nn.functional.cross_entropy(model(x), x.argmax(1) % 4)
    if hook is not None:
        hook.remove()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
