"""A training job with a fault in time or in memory: `racy_job.py KIND`.

``race``: a thread overwrites a part of the batch unless it is waited for, which CUDA_LAUNCH_BLOCKING stands for here.
``delay``: it does so unless it is waited for or everything is slow. ``empty``: a part of a tensor is never written.
``freed``: a part of the batch lies in memory that was freed. ``shared``: it lies in a buffer that another tensor is
over, too, which is written to. ``kernel``: a result is wrong whatever is waited for.
"""

import ctypes
import os
import sys
import threading
import time

import torch
from torch import nn

KIND = sys.argv[1]
BLOCKING = os.environ.get("CUDA_LAUNCH_BLOCKING") == "1"


class Noted(nn.Module):
    """Takes a while, so that what slows everything down does so by as much."""

    def forward(self, x):
        time.sleep(0.05)
        self.ended = time.monotonic()
        return x


def spoilt(x):
    """The batch, of which another thread has overwritten a block by the time it is used."""
    if KIND == "delay":
        wait(x)
        if time.monotonic() - wait.ended > 0.04:
            return x
    if KIND in ("race", "delay") and not BLOCKING:
        thread = threading.Thread(target=lambda: x[:8].fill_(float("nan")))
        thread.start()
        thread.join()
    if KIND == "kernel":
        x[0] = float("nan")
    if KIND == "shared":
        buffer = bytearray(x.numpy().tobytes())
        over, other = (torch.frombuffer(buffer, dtype=torch.float32) for _ in range(2))
        other[:8].fill_(float("nan"))
        return over.reshape(x.shape)
    if KIND == "freed":
        rest, written = x[2:], x[1:3].numpy().tobytes()
        while True:
            alike = [x[:3].clone() for _ in range(8)]  # freed first: glibc keeps seven of a size as they are
            held = x[:3].clone()  # so small that hardly anything takes its place; glibc writes into the first 16 bytes
            view = (ctypes.c_float * 128).from_address(held.data_ptr() + 256)
            del alike, held
            spoilt_bytes = bytes(view)
            # neither what was there nor one pattern: another tensor has taken its place, which this is not about
            if spoilt_bytes == written or len(set(spoilt_bytes)) == 1:
                return torch.cat([torch.frombuffer(bytearray(spoilt_bytes), dtype=torch.float32).reshape(2, 64), rest])
    if KIND == "empty":
        filled = torch.empty_like(x)
        filled[1:] = x[1:]
        return filled
    return x


torch.manual_seed(0)
wait = Noted()
model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for _ in range(8):
    x = torch.randn(4096, 64)
    loss = nn.functional.cross_entropy(model(spoilt(x)), torch.randint(8, (4096,)))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
