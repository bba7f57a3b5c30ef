"""Recording on several ranks: what is recorded of shards and collectives."""

from __future__ import annotations

import json

import pytest
import torch
from tests.ranks.test_watch_changes_nothing import CASES, train
from torch import nn


def reduced(rank, world, out):
    import torch.distributed as dist

    import trueline

    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    watch = trueline.watch(model, optimizer, out=out, plan={"preset": "mix", "phases": ["bwd", "comm", "grad"]})
    model(torch.full((4, 3), rank + 1.0)).sum().backward()
    for param in model.parameters():
        dist.all_reduce(param.grad)
    optimizer.step()
    watch.close()


def test_a_collective_is_recorded_with_its_group_before_and_after(two, tmp_path):
    import trueline

    two.run(reduced, str(tmp_path / "run"))
    rows = trueline.open_run(tmp_path / "run").records().to_pylist()
    for rank in (0, 1):
        comm = [row for row in rows if row["rank"] == rank and row["phase"] == "comm" and row["shape"] == [2, 3]]
        assert [(row["name"], row["slot"], row["sum"]) for row in comm] == [
            ("allreduce", "in0", 24.0 * (rank + 1)),
            ("allreduce", "out0", 72.0),
        ]
        assert json.loads(comm[0]["args"])["group"] == [0, 1]
        local = next(r for r in rows if r["rank"] == rank and r["phase"] == "bwd" and r["name"] == "weight")
        final = next(r for r in rows if r["rank"] == rank and r["phase"] == "grad" and r["name"] == "weight")
        assert (local["sum"], final["sum"]) == (24.0 * (rank + 1), 72.0)


def sharded(rank, world, out):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    import trueline

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 5), nn.Linear(5, 2))
    whole = {name: param.detach().clone() for name, param in model.named_parameters()}
    fully_shard(model, mesh=init_device_mesh("cpu", (world,), mesh_dim_names=("shard",)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    plan = {"preset": "modules", "depth": "fingerprint", "phases": ["param"]}
    watch = trueline.watch(model, optimizer, out=out, plan=plan)
    model(torch.ones(4, 3)).sum().backward()
    optimizer.step()
    watch.close()
    return whole


def test_shards_are_recorded_with_their_place_and_merge_to_the_whole(two, tmp_path):
    import trueline
    from trueline.tensor.fingerprint import HostFingerprint

    whole, _ = two.run(sharded, str(tmp_path / "run"))
    run = trueline.open_run(tmp_path / "run")
    rows = run.records().to_pylist()
    for name, value in whole.items():
        parts = [row for row in rows if row["name"] == name]
        assert [row["rank"] for row in parts] == [0, 1]
        place = json.loads(parts[1]["mesh"])
        assert place["placements"] == ["Shard(dim=0)"] or place["placements"] == ["S(0)"]
        assert place["shape"] == list(value.shape)
        assert place["offsets"][0] == parts[0]["shape"][0]
        merged = run.whole(f"0.0/r1/param/{name}#0:value")
        assert merged.shape == tuple(value.shape)
        assert merged.sum == pytest.approx(value.double().sum().item(), abs=1e-6)
        assert (merged.min, merged.max) == (value.min().item(), value.max().item())
        assert merged.fingerprint == HostFingerprint().of(value)


def test_what_fsdp_does_to_gather_parameters_is_not_recorded_as_ops(two, tmp_path):
    import trueline

    two.run(train, CASES["fsdp2"], str(tmp_path / "run"), {"preset": "ops", "steps": [0, 1]})
    run = trueline.open_run(tmp_path / "run")
    names = {row["name"].rpartition(".")[2] for row in run.records(phases=["fwd", "bwd"]).to_pylist()}
    assert "linear" in names
    assert not {name for name in names if "copy" in name or "chunk" in name or "split" in name}


def tensor_parallel(rank, world):
    from tests.unit.recording import Recording
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    mesh = init_device_mesh("cpu", (world,), mesh_dim_names=("tp",))
    losses, recording = [], None
    for recorded in (False, True):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2, bias=False))
        parallelize_module(model, mesh, {"0": ColwiseParallel(), "1": RowwiseParallel()})
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        recording = Recording(model, {"preset": "mix", "depth": "fingerprint"}, optimizer) if recorded else None
        for step in range(2):
            if recording is not None:
                recording.session.open_step(step)
            loss = model(torch.ones(5, 3)).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        losses.append(loss.item())
    recording.session.drain(wait=True)
    return losses, recording.steps[0]


def test_tensor_parallel_shards_say_where_they_are_and_what_is_not_yet_summed(two):
    results = two.run(tensor_parallel)
    weights = []
    for (bare, recorded), rows in results:
        assert bare == recorded
        weights += [row for row in rows if row["phase"] == "param" and row["name"] == "0.weight"]
        partial = [row for row in rows if "pending_sum" in row["flags"]]
        assert partial
        assert all(json.loads(row["mesh"])["placements"][0].startswith("P") for row in partial)
    assert [json.loads(row["mesh"])["offsets"] for row in weights] == [[0, 0], [2, 0]]


def functional(rank, world):
    import torch.distributed as dist
    import torch.distributed._functional_collectives as funcol
    from tests.unit.recording import Recording

    model = nn.Linear(2, 2)
    recording = Recording(model, {"preset": "ops", "names": ["allreduce", "mul"]})

    def run():
        model(torch.ones(1, 2))
        return funcol.all_reduce(torch.full((3,), rank + 1.0), "sum", dist.group.WORLD) * 2

    return recording.step(0, run)


def test_functional_collectives_are_recorded_and_measured_once_waited_for(two):
    for rank, rows in enumerate(two.run(functional)):
        assert [(row["phase"], row["name"], row["slot"], row.get("sum"), row["note"]) for row in rows] == [
            ("comm", "allreduce", "in0", 3.0 * (rank + 1), None),
            ("comm", "allreduce", "out0", 9.0, None),
            ("fwd", "mul", "in0", 9.0, None),
            ("fwd", "mul", "out0", 18.0, None),
        ]
