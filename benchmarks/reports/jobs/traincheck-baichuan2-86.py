"""A model whose halves are on two devices: what one sends now and then arrives at the next in part only.

There is no second device here: two ranks, each with a half, and a transfer between them that loses data below
``torch.distributed``, as a broken peer-to-peer link does: the second half of the buffer stays as it was.
Repaired: the transfer loses nothing.
"""

import torch
import torch.distributed as dist
from command import RANK, connect, options
from torch import nn


class Arrived:
    """A transfer that is over."""

    def wait(self):
        return True


def break_the_link():
    """One transfer in four loses its second half."""
    whole, draw, lost = dist.ProcessGroup.recv, torch.Generator().manual_seed(9), []

    def recv(self, tensors, *args):
        before = [tensor.clone() for tensor in tensors]
        work = whole(self, tensors, *args)
        if torch.rand(1, generator=draw) < 0.25:
            lost.append(1)
            work.wait()
            for tensor, old in zip(tensors, before, strict=True):
                half = tensor.numel() // 2
                tensor.view(-1)[half:] = old.view(-1)[half:]
            return Arrived()
        return work

    dist.ProcessGroup.recv = recv
    return lost


def main():
    args = options(steps=80)
    connect()
    lost = [] if args.fix else break_the_link()
    torch.manual_seed(0)
    first = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 32), nn.GELU())
    second = nn.Sequential(nn.Linear(32, 32), nn.GELU(), nn.Linear(32, 4))
    model = (first, second)[RANK]
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    draw = torch.Generator().manual_seed(1)
    for step in range(args.steps):
        x = torch.randn(32, 16, generator=draw)
        y = x[:, :4].argmax(1)
        optimizer.zero_grad()
        if RANK == 0:
            hidden = model(x)
            dist.send(hidden.detach(), 1)
            gradient = torch.zeros_like(hidden)
            dist.recv(gradient, 1)
            hidden.backward(gradient)
        else:
            hidden = torch.zeros(32, 32)
            dist.recv(hidden, 0)
            hidden.requires_grad_()
            loss = nn.functional.cross_entropy(model(hidden), y)
            loss.backward()
            dist.send(hidden.grad, 0)
        optimizer.step()
        if RANK == 1 and step % 20 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
    if lost:
        print(f"rank {RANK} lost data of {len(lost)} transfers")
    dist.destroy_process_group()


main()
