"""overflow-origin over ranks: who sent it, and what a collective made of finite values."""

import math

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch import nn

import trueline
from trueline.laws.overflow import overflow_origin
from trueline.store.reader import Run

BAD_RANK = 1


def train(out, loss_of, *, after_backward=lambda model: None, **plan):
    """Two steps of one linear; the second is the bad one."""
    torch.manual_seed(0)
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    watch = trueline.watch(model, optimizer, out=out, plan={"preset": "mix", **plan})
    for step in range(2):
        with watch.step():
            loss_of(model, step == 1).backward()
            if step == 1:
                after_backward(model)
            optimizer.step()
            optimizer.zero_grad()
    watch.close()


def reduce(model):
    for param in model.parameters():
        dist.all_reduce(param.grad)


def sample(rank, bad):
    """A batch as a loader gives it, which no recorded call has made."""
    return torch.from_numpy(np.full((3, 4), math.nan if bad and rank == BAD_RANK else 1.0, np.float32))


def gathered(rank, world_size, out):
    def loss_of(model, bad):
        mine = model(sample(rank, bad))
        all_of = [torch.zeros(3, 4) for _ in range(world_size)]
        dist.all_gather(all_of, mine.detach())
        return (mine - torch.stack(all_of).mean(0) / 2).square().mean()

    train(out, loss_of, after_backward=reduce)


def gathered_after_more_calls(rank, world_size, out):
    def loss_of(model, bad):
        mine = model(torch.ones(3, 4))
        for _ in range(30 if rank == BAD_RANK else 0):
            mine = mine * 1.0
        mine = mine * 1e20 * (1e20 if bad and rank == BAD_RANK else 1e-20)
        all_of = [torch.zeros(3, 4) for _ in range(world_size)]
        dist.all_gather(all_of, mine.detach())
        return (mine - torch.stack(all_of).mean(0) / 2).square().mean()

    train(out, loss_of, after_backward=reduce)


def reduced_functionally(rank, world_size, out):
    def loss_of(model, bad):
        mine = model(sample(rank, bad))
        total = functional.all_reduce(mine.detach(), "sum", dist.group.WORLD)
        return (mine - total / 4).square().mean()

    train(out, loss_of, after_backward=reduce)


def one_rank_records(rank, world_size, out):
    train(out, lambda model, bad: model(sample(rank, bad)).square().mean(), after_backward=reduce, ranks=[0])


def broadcast(rank, world_size, out):
    def loss_of(model, bad):
        scale = torch.from_numpy(np.full(4, math.inf if bad and rank == BAD_RANK else 1.0, np.float32))
        dist.broadcast(scale, BAD_RANK)
        return model(torch.ones(3, 4) * scale).square().mean()

    train(out, loss_of)


def multiplied(rank, world_size, out):
    def loss_of(model, bad):
        return model(sample(rank, False) * (math.nan if bad and rank == BAD_RANK else 1.0)).square().mean()

    train(out, loss_of, after_backward=reduce)


def half_sum(rank, world_size, out):
    def after_backward(model):
        for param in model.parameters():
            half = (param.grad / param.grad.abs().max() * 40_000).half()
            dist.all_reduce(half)
            param.grad.copy_(half.float())

    train(out, lambda model, bad: model(torch.ones(3, 4)).square().mean(), after_backward=after_backward)


def finding_of(pool, fn, tmp_path):
    pool.run(fn, str(tmp_path / "run"))
    (finding,) = overflow_origin.check(Run(tmp_path / "run"))
    assert finding.step_first == 1
    return finding


@pytest.mark.parametrize("fn", [gathered, reduced_functionally])
def test_the_rank_that_sent_it_is_named_and_not_those_that_received_it(two, tmp_path, fn):
    finding = finding_of(two, fn, tmp_path)
    assert (finding.ranks, finding.sites[0]) == ((BAD_RANK,), "1.0/r1/fwd/Linear#0:in0")
    assert finding.severity == "error"


def test_a_rank_that_has_run_more_calls_is_still_the_one_that_sent_it(two, tmp_path):
    finding = finding_of(two, gathered_after_more_calls, tmp_path)
    assert (finding.ranks, finding.sites[0]) == ((BAD_RANK,), "1.0/r1/fwd/mul#31:out0")


def test_a_value_that_is_sent_before_anything_is_recorded_is_named_at_the_collective(two, tmp_path):
    finding = finding_of(two, broadcast, tmp_path)
    assert (finding.ranks, finding.sites[0]) == ((BAD_RANK,), "1.0/r1/comm/broadcast#0:in0")


def test_a_value_that_a_script_makes_before_the_model_is_named_where_it_is_made(two, tmp_path):
    finding = finding_of(two, multiplied, tmp_path)
    assert (finding.ranks, finding.sites[0]) == ((BAD_RANK,), "1.0/r1/fwd/mul#0:out0")


def test_a_sum_of_finite_values_that_does_not_fit_is_the_collective_itself(two, tmp_path):
    finding = finding_of(two, half_sum, tmp_path)
    assert (finding.ranks, finding.severity) == ((0, 1), "error")
    assert finding.sites[0] == "1.0/r0/comm/allreduce#0:out0"
    assert "from finite values" in finding.claim
    (sent,) = finding.evidence["inputs"]
    assert 32_752 < sent["largest_finite"] <= 40_000


def test_what_comes_from_a_rank_that_does_not_record_gets_a_lower_grade(two, tmp_path):
    finding = finding_of(two, one_rank_records, tmp_path)
    assert (finding.ranks, finding.severity, finding.evidence["grade"]) == ((0,), "warning", "high")
    assert finding.sites[0].startswith("1.0/r0/comm/allreduce#0")
