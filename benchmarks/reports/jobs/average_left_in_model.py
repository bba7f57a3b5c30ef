"""Before a checkpoint is written the averaged weights are copied into the model, and nobody puts its own back.

Training goes on from the average at every save. Repaired: the weights are stored before and restored after.
"""

import torch
from common import Points, batches, begin, end, options, say
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel


class Shadow:
    def __init__(self, parameters, decay):
        self.decay = decay
        self.shadow = [parameter.detach().clone() for parameter in parameters]
        self.stored = []

    @torch.no_grad()
    def update(self, parameters):
        for average, parameter in zip(self.shadow, parameters, strict=True):
            average.lerp_(parameter, 1 - self.decay)

    @torch.no_grad()
    def copy_to(self, parameters):
        for average, parameter in zip(self.shadow, parameters, strict=True):
            parameter.copy_(average)

    def store(self, parameters):
        self.stored = [parameter.detach().clone() for parameter in parameters]

    @torch.no_grad()
    def restore(self, parameters):
        for stored, parameter in zip(self.stored, parameters, strict=True):
            parameter.copy_(stored)


def main():
    args = options(save_steps=25)
    begin()
    net = nn.Sequential(nn.Linear(20, 64), nn.SiLU(), nn.Linear(64, 64), nn.SiLU(), nn.Linear(64, 20))
    model = DistributedDataParallel(net)
    shadow = Shadow(list(net.parameters()), decay=0.98)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    noise = torch.Generator().manual_seed(40 + torch.distributed.get_rank())
    changed = False
    for step, (x, _) in enumerate(batches(Points(1600), epochs=2, batch=16), 1):
        noisy = x + 0.5 * torch.randn(x.shape, generator=noise)
        loss = F.mse_loss(model(noisy), x)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        shadow.update(list(net.parameters()))
        if step % args.save_steps == 0:
            before = net[0].weight.detach().clone()
            if args.fix:
                shadow.store(list(net.parameters()))
            shadow.copy_to(list(net.parameters()))
            if torch.distributed.get_rank() == 0:
                torch.save(net.state_dict(), "average.pt")
            if args.fix:
                shadow.restore(list(net.parameters()))
            changed = changed or not torch.equal(before, net[0].weight)
            say(f"step {step} loss {loss.item():.4f}")
    say(f"end: weights after a save are {'other ones' if changed else 'those before'}")
    end()


main()
