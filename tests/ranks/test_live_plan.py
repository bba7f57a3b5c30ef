"""The Plan changes while training goes on: at one step on all ranks, and training stays bitwise the same."""

from __future__ import annotations

import json

import pytest
import torch
import torch.distributed as dist
from torch import nn

from trueline.testing.ranks import Ranks

STEPS = 42


@pytest.fixture(scope="module")
def two():
    with Ranks(2) as ranks:
        yield ranks


@pytest.fixture(scope="module")
def three():
    with Ranks(3) as ranks:
        yield ranks


def train(rank, world, out, plan, edits, *, poisoned=None, broken=None, kind="ddp"):
    """Losses and weights of ``STEPS`` steps. The first rank puts ``edits[step]`` into the plan file after that step;
    the batch of ``poisoned`` = (rank, step) is NaN, the all-reduce of ``broken`` = (rank, step) is doubled there.
    """
    import trueline
    from trueline.capture import live
    from trueline.schema.plan_files import plan_path

    live.LOOK_S = 0.0
    torch.manual_seed(0)
    inner = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
    model = nn.parallel.DistributedDataParallel(inner) if kind == "ddp" and world > 1 else inner
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    watch = trueline.watch(model, optimizer, out=out, plan=plan) if out is not None else None
    losses = []
    for step in range(STEPS):
        generator = torch.Generator().manual_seed(100 * step + rank)
        x = torch.randn(4, 6, generator=generator)
        if poisoned == (rank, step):
            x[0, 0] = torch.nan
        loss = model(x).square().mean()
        loss.backward()
        if kind == "manual":
            for param in model.parameters():
                dist.all_reduce(param.grad)
                param.grad /= world * (0.5 if broken == (rank, step) else 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        if rank == 0 and watch is not None and step in edits:
            edit = edits[step]
            with open(plan_path(out), "w") as file:
                file.write(edit if isinstance(edit, str) else json.dumps(edit))
    if watch is not None:
        watch.close()
    return losses, {name: value.clone() for name, value in inner.state_dict().items()}


def recorded_steps(run, world):
    """Steps that each rank recorded, which must be the same for all."""
    rows = run.records()
    by_rank = [set() for _ in range(world)]
    for rank, step in zip(rows["rank"].to_pylist(), rows["step"].to_pylist(), strict=True):
        by_rank[rank].add(step)
    assert all(steps == by_rank[0] for steps in by_rank), by_rank
    return sorted(by_rank[0])


def assert_same_training(plain, watched):
    for (losses, state), (losses_watched, state_watched) in zip(plain, watched, strict=True):
        assert losses == losses_watched
        assert all(torch.equal(value, state_watched[name]) for name, value in state.items())


@pytest.mark.parametrize("world", [2, 3])
@pytest.mark.parametrize(
    ("plan", "begins", "ends"),
    [({}, 8, 26), ({"every": 2}, 10, 26), ({"steps": [0, 3]}, 20, 40)],
    ids=["every step", "every other step", "outside of steps"],
)
def test_all_ranks_begin_and_end_at_the_same_step(request, tmp_path, world, plan, begins, ends):
    """An edit after step 4 is seen before step 6 and told with the next sum: that of 6, or, where no step is watched,
    the beat of 10.
    """
    import trueline

    ranks = request.getfixturevalue({2: "two", 3: "three"}[world])
    edits = {4: {"preset": "mix", "steps": [0, None], "every": 1}, 22: {"preset": "workers"}}
    out = str(tmp_path / "run")
    watched = ranks.run(train, out, plan, edits)
    assert_same_training(ranks.run(train, None, plan, edits), watched)
    run = trueline.open_run(out)
    assert [finding.claim for finding in run.live_findings] == []
    assert [(entry.revision, entry.step, entry.plan["preset"]) for entry in run.manifest.plans] == [
        (1, begins, "mix"),
        (2, ends, "workers"),
    ]
    assert recorded_steps(run, world) == list(range(begins, ends))
    assert run.manifest.plan["preset"] == "workers"
    assert trueline.check(out).exit_code == 0
