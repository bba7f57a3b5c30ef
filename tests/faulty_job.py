"""A training job whose loss becomes NaN where it has what its first word says: a trial must find out what.

`faulty_job.py NEEDS [--fast] [--steps N]`, NEEDS being `fused` (updates are lost by torch's own fault in 2.13), `both`
(A and B in the environment), `either`, `flag` (the word --fast), `random` (one run of two), or `none`.
"""

import os
import random
import sys

import torch
from torch import nn

NEEDS = sys.argv[1]
A, B = (os.environ.get(name, "1") == "1" for name in ("FUSE_A", "FUSE_B"))
HAS = {
    "both": A and B,
    "either": A or B,
    "flag": "--fast" in sys.argv,
    "random": A and random.SystemRandom().random() < 0.5,
    "none": True,
}.get(NEEDS, False)


torch.manual_seed(0)
dtype = torch.bfloat16 if NEEDS == "fused" else torch.float32
model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 8)).to(dtype)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, fused=NEEDS == "fused")
teacher = torch.randn(32, 8)
steps = int(sys.argv[sys.argv.index("--steps") + 1]) if "--steps" in sys.argv else 8
for step in range(steps):
    x = torch.randn(64, 32)
    loss = nn.functional.cross_entropy(model(x.to(dtype)).float(), (x @ teacher).argmax(1))
    if HAS and step == 5:
        loss = loss * float("nan")
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
with open("ended", "w") as file:
    file.write("a script that came to its end")
