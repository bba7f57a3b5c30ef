"""Under FSDP each rank clips its own shard of the gradients by the norm of that shard.

torch.nn.utils.clip_grad_norm_ sees the parts of the rank alone. Repaired: the model's own clip_grad_norm_ is called,
which sums over the ranks.
"""

import warnings

import torch
import torch.distributed as dist
from common import WORLD, Points, batches, begin, end, options, say
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.nn import functional as F


def main():
    args = options(epochs=3, clip=0.5)
    warnings.filterwarnings("ignore")
    begin()
    net = nn.Sequential(nn.Linear(20, 128), nn.GELU(), nn.Linear(128, 128), nn.GELU(), nn.Linear(128, 5))
    model = FullyShardedDataParallel(net, device_id=torch.device("cpu"))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    alike = True
    for step, (x, label) in enumerate(batches(Points(960, spread=2.5), args.epochs, batch=16)):
        loss = F.cross_entropy(model(x), label)
        optimizer.zero_grad()
        loss.backward()
        if args.fix:
            norm = model.clip_grad_norm_(args.clip)
        else:
            norm = torch.nn.utils.clip_grad_norm_(model.parameters(), args.clip)
        optimizer.step()
        norms = [torch.zeros(()) for _ in range(WORLD)]
        dist.all_gather(norms, norm.detach().float().reshape(()))
        alike = alike and bool(torch.isclose(norms[0], norms[1]))
        if step % 20 == 0:
            say(f"step {step} loss {loss.item():.4f} norm {norm:.4f}")
    say(f"end: the ranks clipped by the same norm: {alike}")
    end()


main()
