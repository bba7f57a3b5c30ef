"""Case 3.2.2.1: another stream writes into memory that is still read; a thread stands for the stream here.

With CUDA_LAUNCH_BLOCKING=1 it is waited for, as on a device.
"""

import os
import threading
import time

import torch
from torch import nn

WAITS = os.environ.get("CUDA_LAUNCH_BLOCKING") == "1"


class Mixer(nn.Module):
    """A layer whose work takes a while."""

    def forward(self, x):
        time.sleep(0.02)
        return x


def overwritten(x):
    if not WAITS:
        other = threading.Thread(target=lambda: x[:8].fill_(float("nan")))
        other.start()
        other.join()
    return x


torch.manual_seed(0)
mixer, model = Mixer(), nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for _ in range(8):
    x = torch.randn(256, 64)
    loss = nn.functional.cross_entropy(model(overwritten(mixer(x))), torch.randint(8, (256,)))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
