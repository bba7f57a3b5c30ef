"""Replicas that update by themselves between averagings, on purpose: not judged as replicas, and nothing is changed."""

from __future__ import annotations

import contextlib
import types

import pytest
import torch
import torch.distributed as dist
from torch import nn

STEPS = 8
BY_DESIGN = ("replica-drift", "gradient-not-reduced")


def local_sgd_of(model):
    """Accelerate's own, every third step. Its accelerator is stood in for: that needs a launch of its own."""
    from accelerate.local_sgd import LocalSGD
    from accelerate.utils import DistributedType

    def reduce(x, reduction):
        dist.all_reduce(x)
        return x / dist.get_world_size()

    accelerator = types.SimpleNamespace(
        distributed_type=DistributedType.MULTI_CPU,
        wait_for_everyone=dist.barrier,
        autocast=contextlib.nullcontext,
        reduce=reduce,
    )
    return LocalSGD(accelerator, model, 3)


def train(rank, world, out, kind, plan):
    """Losses and weights of a training whose replicas part and are averaged every third step, but for ``apart``."""
    from torch.distributed.algorithms.ddp_comm_hooks import debugging_hooks, default_hooks, post_localSGD_hook
    from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
    from torch.distributed.optim import PostLocalSGDOptimizer

    import trueline

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(20, 40), nn.Tanh(), nn.Linear(40, 5))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    averager = PeriodicModelAverager(period=3, warmup_steps=1)
    if kind in ("post-local", "post-local fp16", "no-op"):
        model = nn.parallel.DistributedDataParallel(model)
    if kind.startswith("post-local"):
        state = post_localSGD_hook.PostLocalSGDState(None, None, 1, post_local_gradient_allreduce=False)
        hook = post_localSGD_hook.post_localSGD_hook
        model.register_comm_hook(state, default_hooks.fp16_compress_wrapper(hook) if "fp16" in kind else hook)
        optimizer = PostLocalSGDOptimizer(optim=optimizer, averager=averager)
    elif kind == "no-op":
        model.register_comm_hook(None, debugging_hooks.noop_hook)
    elif kind == "accelerate":
        model = nn.parallel.DistributedDataParallel(model)
        local_sgd = local_sgd_of(model).__enter__()
    watch = trueline.watch(model, optimizer, out=out, plan=plan | {"every": 1, "params_every": 1}) if out else None
    losses = []
    for step in range(STEPS):
        generator = torch.Generator().manual_seed(100 * step + rank)
        x, y = torch.randn(8, 20, generator=generator), torch.randint(0, 5, (8,), generator=generator)
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        if kind == "averager":
            averager.average_parameters(model.parameters())
        elif kind == "accelerate":
            local_sgd.step()
        elif kind == "by hand" and step % 3 == 2:
            for param in model.parameters():
                dist.all_reduce(param.data)
                param.data /= world
        optimizer.zero_grad()
    if watch is not None:
        watch.close()
    return losses, [param.detach().clone() for param in model.parameters()]


def checked(two, tmp_path, kind, plan):
    import trueline

    out = str(tmp_path / "run")
    for (losses, weights), (seen_losses, seen_weights) in zip(
        two.run(train, None, kind, plan), two.run(train, out, kind, plan), strict=True
    ):
        assert losses == seen_losses
        assert all(map(torch.equal, weights, seen_weights))
    assert len(trueline.open_run(out).steps) == STEPS
    return trueline.check(out)


@pytest.mark.in_turn
@pytest.mark.parametrize(
    ("kind", "plan", "named"),
    [
        ("post-local", {}, "post_localSGD_hook"),
        ("post-local fp16", {}, "fp16_compress_wrapper"),
        ("no-op", {}, "noop_hook"),
        ("averager", {}, "PeriodicModelAverager"),
        ("accelerate", {}, "LocalSGD"),
        ("by hand", {"local_updates": True}, "the plan"),
    ],
)
def test_local_updates_by_design_are_not_judged(two, tmp_path, kind, plan, named):
    report = checked(two, tmp_path, kind, plan)
    assert [finding.claim for finding in report.findings if finding.is_grave] == []
    not_run = {entry.check: entry for entry in report.checks_not_run}
    for code in BY_DESIGN:
        assert not_run[code].reason == "by-design"
        assert named in not_run[code].why


def test_replicas_that_part_by_mistake_are_still_found(two, tmp_path):
    report = checked(two, tmp_path, "by hand", {})
    assert {finding.code for finding in report.findings if finding.severity == "error"} == set(BY_DESIGN)
