"""What each rank gives into a reduction by hand is what backward left it, or the rank is named."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch import nn

import trueline

STEPS = 6
ODD = 1


def each(grads, world):
    for grad in grads:
        dist.all_reduce(grad)
        grad /= world


def divided_first(grads, world):
    for grad in grads:
        grad /= world
        dist.all_reduce(grad.data)


def flat(grads, world):
    joined = torch.cat([grad.flatten() for grad in grads])
    dist.all_reduce(joined)
    joined /= world
    for grad, part in zip(grads, joined.split([grad.numel() for grad in grads]), strict=True):
        grad.copy_(part.view_as(grad))


def flat_in(order):
    """All gradients in one buffer, in another order than that of the parameters."""

    def reduce(grads, world):
        joined = torch._utils._flatten_dense_tensors([grads[index] for index in order])
        joined /= world
        dist.all_reduce(joined)
        parts = joined.split([grads[index].numel() for index in order])
        for index, part in zip(order, parts, strict=True):
            grads[index].copy_(part.view_as(grads[index]))

    return reduce


def reversed_flat(grads, world):
    flat_in([3, 2, 1, 0])(grads, world)


def flat_by_name(grads, world):
    flat_in([1, 0, 3, 2])(grads, world)


def behind(grads, world):
    works = [dist.all_reduce(grad, async_op=True) for grad in grads]
    for work, grad in zip(works, grads, strict=True):
        work.wait()
        grad /= world


def wide(grads, world):
    for grad in grads:
        copy = grad.double()
        dist.all_reduce(copy)
        grad.copy_(copy / world)


def train(rank, world, out, reduce, change, micro=1):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(20, 40), nn.Tanh(), nn.Linear(40, 5))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with trueline.watch(model, optimizer, out=out, plan={"every": 1}):
        for step in range(STEPS):
            optimizer.zero_grad()
            for part in range(micro):
                generator = torch.Generator().manual_seed(1000 * part + 100 * step + rank)
                x, y = torch.randn(8, 20, generator=generator), torch.randint(0, 5, (8,), generator=generator)
                nn.functional.cross_entropy(model(x), y).backward()
            dist.all_reduce(torch.ones(()))  # what a logger does
            grads = [param.grad for param in model.parameters()]
            change(grads, step, rank)
            reduce(grads, world)
            nn.utils.clip_grad_value_(model.parameters(), 0.05)
            optimizer.step()


def untouched(grads, step, rank):
    pass


def clipped_on_one(grads, step, rank):
    if rank == ODD:
        norm = torch.stack([grad.norm() for grad in grads]).norm()
        for grad in grads:
            grad *= 0.1 / norm


def flipped_on_one(grads, step, rank):
    if rank == ODD and step == 3:
        grads[2].view(-1).view(torch.int32)[7] ^= 1 << 27


def zeroed_on_one(grads, step, rank):
    if rank == ODD and step == 3:
        for grad in grads:
            grad.zero_()


def all_by_value(grads, step, rank):
    for grad in grads:
        grad.clamp_(-0.01, 0.01)


def all_noisy(grads, step, rank):
    for grad in grads:
        grad += 0.01 * torch.randn_like(grad)


def weighted(grads, step, rank):
    for grad in grads:
        grad *= (3 + rank + step) / 4


def found(out):
    return [each for each in trueline.check(out).findings if each.code == "reduction-mismatch"]


@pytest.mark.in_turn
@pytest.mark.parametrize("reduce", [each, divided_first, flat, behind, wide, reversed_flat, flat_by_name])
@pytest.mark.parametrize(
    ("change", "kind", "step"),
    [(clipped_on_one, "scaled-before", 0), (flipped_on_one, "changed-before", 3), (zeroed_on_one, "lost-before", 3)],
)
def test_the_rank_whose_gradient_is_changed_before_the_reduction_is_named(two, tmp_path, reduce, change, kind, step):
    two.run(train, str(tmp_path / "run"), reduce, change)
    (finding,) = found(tmp_path / "run")
    step = max(step, 1) if reduce in (reversed_flat, flat_by_name) else step  # the order is known from step 1 on
    assert (finding.evidence["kind"][0], finding.ranks, finding.step_first) == (kind, (ODD,), step)


@pytest.mark.in_turn
@pytest.mark.parametrize(
    ("reduce", "change", "micro"),
    [
        (each, untouched, 1),
        (divided_first, untouched, 2),
        (flat, untouched, 2),
        (reversed_flat, untouched, 1),
        (flat_by_name, untouched, 2),
        (behind, untouched, 1),
        (wide, untouched, 1),
        (each, all_by_value, 1),
        (flat, all_noisy, 1),
        (each, weighted, 1),
    ],
)
def test_what_all_ranks_do_before_the_reduction_is_left_alone(two, tmp_path, reduce, change, micro):
    two.run(train, str(tmp_path / "run"), reduce, change, micro)
    assert found(tmp_path / "run") == []
