"""A backbone is frozen while DDP wraps the model, and unfrozen after an epoch: DDP does not know its parameters.

Their gradients are of each rank's own data. Repaired: the model is wrapped again when parameters are unfrozen.
"""

import torch
import torch.distributed as dist
from common import Pictures, batches, begin, end, options, say
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel


def main():
    args = options(unfreeze_at=1)
    begin()
    net = nn.Sequential()
    net.backbone = nn.Sequential(nn.Flatten(), nn.Linear(144, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU())
    net.head = nn.Linear(32, 10)
    net.backbone.requires_grad_(False)
    model = DistributedDataParallel(net)
    optimizer = torch.optim.SGD(net.head.parameters(), lr=0.05, momentum=0.9)
    data = Pictures(640)
    for epoch in range(4):
        if epoch == args.unfreeze_at:
            net.backbone.requires_grad_(True)
            optimizer.add_param_group({"params": net.backbone.parameters(), "lr": 0.02})
            if args.fix:
                model = DistributedDataParallel(net)
        for x, label in batches(data, epochs=1, batch=16, seed=epoch):
            loss = F.cross_entropy(model(x), label)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        say(f"epoch {epoch} loss {loss.item():.4f}")
    weight = net.backbone[1].weight.detach()
    mean = weight.clone()
    dist.all_reduce(mean)
    apart = (weight - mean / dist.get_world_size()).norm().item()
    say(f"end: the backbones are {'alike' if apart < 1e-5 else 'apart'}")
    end()


main()
