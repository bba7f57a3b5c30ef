"""Models whose parameters are DTensors without FSDP2: one Run of all ranks, recorded steps, and no comparison between
ranks that hold one model together.
"""

from __future__ import annotations

import json

import pytest
import torch
import torch.distributed as dist
from torch import nn

STEPS = 5
DIM = 5
"""Odd, so that FSDP2 pads its shards."""


class Block(nn.Module):
    """A norm that every rank holds whole, and two layers that are cut along columns, then rows."""

    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(DIM)
        self.up = nn.Linear(DIM, 8)
        self.down = nn.Linear(8, DIM)

    def forward(self, x):
        return x + self.down(torch.tanh(self.up(self.norm(x))))


def train(rank, world, out, plan, dp=1, group="none", fsdp=False):
    """Losses and local weights of ``STEPS`` steps of tensor parallelism over ``world / dp`` ranks; where ``dp`` is more
    than 1, gradients are averaged over ranks that hold the same shards, by hand or by FSDP2.
    """
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    import trueline

    mesh = init_device_mesh("cpu", (dp, world // dp), mesh_dim_names=("dp", "tp"))
    torch.manual_seed(0)
    model = nn.Sequential(Block(), Block())
    for block in model:
        parallelize_module(block, mesh["tp"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
    if fsdp:
        for block in (*model, model):
            fully_shard(block, mesh=mesh["dp"])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    replica = mesh.get_local_rank("dp")
    workers = mesh.get_group("dp")
    given = {"none": None, "dp": workers, "world": dist.group.WORLD}[group]
    watch = trueline.watch(model, optimizer, out=out, plan=plan, process_group=given) if out is not None else None
    losses, norms = [], []
    for step in range(STEPS):
        x = torch.randn(4, DIM, generator=torch.Generator().manual_seed(10 * step + replica))
        loss = model(x).square().mean()
        loss.backward()
        grads = [
            param.grad.to_local() if hasattr(param.grad, "to_local") else param.grad for param in model.parameters()
        ]
        norms.append(torch.cat([grad.flatten() for grad in grads]).double().norm().item())
        if dp > 1 and not fsdp:
            for grad in grads:
                dist.all_reduce(grad, group=workers)
                grad /= dp
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    if watch is not None:
        watch.close()
    weights = [param.to_local() if hasattr(param, "to_local") else param for param in model.parameters()]
    return losses, [weight.detach().clone() for weight in weights], norms


def assert_same_training(plain, watched):
    for (losses, weights, _), (losses_watched, weights_watched, _) in zip(plain, watched, strict=True):
        assert losses == losses_watched
        assert all(map(torch.equal, weights, weights_watched))


def test_one_run_with_the_recorded_steps_of_all_ranks_and_nothing_compared(two, tmp_path):
    import trueline

    out = str(tmp_path / "run")
    plan = {"preset": "mix", "depth": "fingerprint", "every": 1, "params_every": 1, "exact": True}
    watched = two.run(train, out, plan)
    assert_same_training(two.run(train, None, plan), watched)
    run = trueline.open_run(out)
    assert (run.problems, run.live_findings) == ([], [])
    assert run.manifest.adapter == "sharded"
    (note,) = run.manifest.notes
    assert note == (
        "2 ranks hold one model together (mesh tp = 2) and are not compared with each other; their gradients are not "
        "watched, their steps can be recorded."
    )
    rows = run.records().to_pylist()
    assert {(row["rank"], row["step"]) for row in rows} == {(rank, step) for rank in (0, 1) for step in range(STEPS)}
    places = [json.loads(row["mesh"]) for row in rows if (row["phase"], row["name"]) == ("param", "0.up.weight")]
    assert [place["offsets"] for place in places[:: len(places) // 2]] == [[0, 0], [4, 0]]
    assert run.pivot("loss")[1].all()
    assert not run.pivot("grad_norm")[1].any()
    assert {env.replica_key for env in run.env.values()} == {"rank 0", "rank 1"}


@pytest.mark.parametrize("group", ["none", "world"])
def test_ranks_that_read_the_same_samples_on_purpose_are_not_accused(two, tmp_path, group):
    import trueline

    out = str(tmp_path / "run")
    two.run(train, out, {"every": 1, "params_every": 1}, 1, group)
    report = trueline.check(out)
    assert report.findings == ()
    assert not {check for check in report.checks_run if check.startswith("dispersion")}
    assert any("only one worker" in entry.why for entry in report.checks_not_run)


PAIRS = (("run", [0, 2]), ("run.ranks-1", [1, 3]))
"""A mesh of 2 workers x 2 shards: who is compared in which Run."""


@pytest.mark.in_turn
@pytest.mark.parametrize("group", ["none", "dp"])
def test_workers_that_hold_the_same_shards_are_compared(four, tmp_path, group):
    plan = {"every": 1, "params_every": 1, "matrix_every": 1, "exact": True}
    watched = four.run(train, str(tmp_path / "run"), plan, 2, group)
    assert_same_training(four.run(train, None, {}, 2), watched)
    for name, members in PAIRS:
        run = compared(tmp_path / name, members, norms=[watched[rank][2] for rank in members])
        assert "hold the same part of a model (mesh tp = 2)" in run.manifest.notes[0]


@pytest.mark.in_turn
def test_fsdp2_over_tensor_parallelism_is_compared_within_each_cut(four, tmp_path):
    """The truth is the same training by hand, where a worker's gradient is seen before it is averaged."""
    plan = {"every": 1, "params_every": 1, "preset": "modules", "depth": "fingerprint"}
    watched = four.run(train, str(tmp_path / "run"), plan, 2, "none", True)
    assert_same_training(four.run(train, None, {}, 2, "none", True), watched)
    truth = four.run(train, None, {}, 2)
    for name, members in PAIRS:
        run = compared(tmp_path / name, members, norms=[truth[rank][2] for rank in members])
        assert run.manifest.adapter == "fsdp2"
        assert f"ranks {members[0]} and {members[1]}, which hold the same cut" in run.manifest.notes[0]
        assert set(run.records()["rank"].to_pylist()) == set(members)


def compared(path, members, *, norms):
    """The Run at ``path``, whose workers were compared, rightly, and are healthy."""
    import trueline

    run = trueline.open_run(path)
    assert run.live_findings == []
    assert run.manifest.data_parallel_ranks == members
    grad_norms = run.pivot("grad_norm")[0]
    for column, truth in enumerate(norms):
        # one rounding of the whole backward pass a step, which later steps add up
        assert grad_norms[:, column] == pytest.approx(truth, rel=1e-4)
    assert run.pivot("cosine_mean")[1].all()
    residual, floor = run.stack("group_reduce_residual")[0], run.stack("group_reduce_floor")[0]
    assert (residual <= floor).all()
    report = trueline.check(path)
    assert [finding.claim for finding in report.findings if finding.is_grave] == []
    assert {"replica-drift", "reduction-mismatch"} & set(report.checks_run)
    return run


def samples_of_parts(rank, world):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    from trueline.capture.probes.batch import read_batch

    mesh = init_device_mesh("cpu", (world,))
    x = torch.arange(12).view(4, 3)
    batches = [read_batch(x), *(read_batch(distribute_tensor(x, mesh, [how])) for how in (Replicate(), Shard(0)))]
    return [batch.samples.tolist() for batch in batches]


def test_the_samples_of_a_distributed_batch_are_this_ranks_own(two):
    for rank, (plain, replicated, cut) in enumerate(two.run(samples_of_parts)):
        assert replicated == plain
        assert cut == plain[2 * rank : 2 * rank + 2]
