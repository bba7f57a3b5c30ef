"""Updates that are left out on all ranks, where one of them alone shows why."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch import nn

import trueline
from trueline.schema.finding import PLAN_REFUSED, UPDATE_SKIPPED

STEPS, BAD = 64, 60


def train(rank, world, out, kind, how, plan):
    """One rank's weights and counts of updates after ``STEPS`` steps, of which ``BAD`` is spoilt on the last rank."""
    torch.manual_seed(0)
    model = net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    if kind == "ddp":
        net = nn.parallel.DistributedDataParallel(model)
    elif kind == "fsdp2":
        from torch.distributed.fsdp import fully_shard

        net = fully_shard(model)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
    generator = torch.Generator().manual_seed(1 + rank)
    with trueline.watch(net, optimizer, out=out, plan=plan):
        for step in range(STEPS):
            x, y = torch.randn(8, 4, generator=generator), torch.randn(8, 1, generator=generator)
            spoilt = step == BAD and rank == world - 1
            loss = (net(x * float("nan") if spoilt and how == "batch" else x) - y).square().mean()
            loss.backward()
            if kind == "manual":
                for param in model.parameters():
                    dist.all_reduce(param.grad)
                    param.grad /= world
            if spoilt and how == "bit":  # of an exponent, after ranks have reduced
                next(iter(net.parameters())).grad.view(torch.int32)[0, 0] ^= 1 << 30
            optimizer.step()
            optimizer.zero_grad()
    whole = [param.full_tensor() if kind == "fsdp2" else param for param in net.parameters()]
    return [param.detach().tolist() for param in whole], [float(state["step"]) for state in optimizer.state.values()]


@pytest.mark.parametrize(("kind", "how"), [("ddp", "batch"), ("fsdp2", "batch"), ("manual", "bit"), ("ddp", "bit")])
def test_what_one_rank_shows_is_left_out_on_all(two, tmp_path, kind, how):
    plan = {"on_finding": "skip", "most_skips": 3}
    (weights, counts), (others, counts_there) = two.run(train, str(tmp_path / "run"), kind, how, plan)
    assert weights == others
    assert {*counts, *counts_there} == {float(STEPS - 1)}
    assert torch.tensor(weights[0]).isfinite().all()
    found = trueline.open_run(tmp_path / "run").live_findings
    assert [finding.code for finding in found if finding.code in (UPDATE_SKIPPED, PLAN_REFUSED)] == [UPDATE_SKIPPED]
    claim = next(finding.claim for finding in found if finding.code == UPDATE_SKIPPED)
    assert f"would have been step {BAD} was left out on all ranks" in claim
    # what ranks have reduced is the same on all of them
    assert claim.endswith("on rank 1.") is (how == "bit" and "not finite" in claim)


def parts(rank, world, out):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    mesh = init_device_mesh("cpu", (world,))
    model = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 1))
    parallelize_module(model, mesh, {"0": ColwiseParallel(), "1": RowwiseParallel()})
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    with trueline.watch(model, optimizer, out=out, plan={"on_finding": "skip", "most_skips": 3}):
        for _ in range(3):
            model(torch.ones(2, 4)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()


def test_ranks_that_hold_parts_of_one_model_leave_out_nothing_and_say_so(two, tmp_path):
    two.run(parts, str(tmp_path / "run"))
    found = trueline.open_run(tmp_path / "run").live_findings
    assert [finding.claim for finding in found if finding.code == PLAN_REFUSED] == [
        '`on_finding = "skip"`: no update is left out: ranks that hold parts of one model do not compare what they '
        "hold, and would not decide alike."
    ]


def one_more_here(rank, world, out):
    """The first rank updates once more than the others, which the plan does not know of."""
    from trueline.capture.step import skipping

    skipping.REDUCING_S = 1.0
    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    before = []
    with trueline.watch(model, optimizer, out=out, plan={"on_finding": "skip", "most_skips": 3}):
        for _ in range(4 if rank else 5):
            before = [param.clone() for param in model.parameters()]
            model(torch.ones(2, 4)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    return [not torch.equal(now, then) for now, then in zip(model.parameters(), before, strict=True)]


def test_a_rank_that_does_not_come_to_an_update_ends_the_asking_and_not_the_training(two, tmp_path):
    assert two.run(one_more_here, str(tmp_path / "run")) == [[True, True]] * 2
    found = trueline.open_run(tmp_path / "run").live_findings
    (refused,) = [finding.claim for finding in found if finding.code == PLAN_REFUSED]
    assert "another rank did not come to the update" in refused
