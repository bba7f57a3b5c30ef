"""A mean teacher follows the student's parameters and not its buffers: its batch norms keep their first statistics.

The teacher's answers for the unlabelled pictures, which the student is to give as well, are those of another
normalisation. Repaired: the buffers follow too.
"""

import copy

import torch
from common import Convolutions, Pictures, batches, begin, options, say
from torch.nn import functional as F


class MomentumUpdater:
    def __init__(self, tau=0.95):
        self.tau = tau

    @torch.no_grad()
    def update(self, online, momentum, buffers):
        for op, mp in zip(online.parameters(), momentum.parameters(), strict=True):
            mp.mul_(self.tau).add_(op, alpha=1 - self.tau)
        if not buffers:
            return
        for ob, mb in zip(online.buffers(), momentum.buffers(), strict=True):
            if ob.is_floating_point():
                mb.mul_(self.tau).add_(ob, alpha=1 - self.tau)
            else:
                mb.copy_(ob)


def main():
    args = options()
    begin()
    student = Convolutions()
    teacher = copy.deepcopy(student).eval().requires_grad_(False)
    first = teacher.stem[1].running_mean.clone()
    updater = MomentumUpdater()
    optimizer = torch.optim.SGD(student.parameters(), lr=0.05, momentum=0.9)
    labelled = batches(Pictures(160, seed=1), epochs=10, batch=16, seed=1)
    unlabelled = batches(Pictures(1600, seed=2), epochs=1, batch=16, seed=2)
    for step, ((x, label), (free, _)) in enumerate(zip(labelled, unlabelled, strict=True)):
        soft = teacher(free + 0.1 * torch.randn_like(free)).softmax(-1)
        out, wanted = student(torch.cat((x, free + 0.3 * torch.randn_like(free)))).chunk(2)
        loss = F.cross_entropy(out, label) + min(1.0, step / 50) * F.mse_loss(wanted.softmax(-1), soft)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        updater.update(student, teacher, args.fix)
        if step % 20 == 0:
            say(f"step {step} loss {loss.item():.4f}")
    say(f"end: the teacher's running mean moved by {(teacher.stem[1].running_mean - first).norm().item():.4f}")


main()
