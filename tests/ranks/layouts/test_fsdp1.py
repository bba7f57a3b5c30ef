"""FSDP1: gradients are seen; shards are never compared as replicas, samples, losses and what ranks hold whole are."""

from __future__ import annotations

import pytest
import torch
from torch import nn

STEPS = 8


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate = nn.Linear(30, 30)
        self.up = nn.Linear(30, 64)
        self.down = nn.Linear(64, 5)

    def forward(self, x):
        return self.down(torch.tanh(self.up(self.gate(x))))


def train(rank, world, out, strategy, orig_params, options):
    """Losses and local weights; ranks read the ``same`` samples, or ``gate`` is no part of FSDP and never reduced."""
    from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy

    import trueline

    torch.manual_seed(0)
    inside = Net()
    model = FullyShardedDataParallel(
        inside,
        sharding_strategy=ShardingStrategy[strategy],
        use_orig_params=orig_params,
        device_id=torch.device("cpu"),
        ignored_modules=[inside.gate] if "ignored" in options else None,
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    watch = trueline.watch(model, optimizer, out=out, plan={"params_every": 2}) if out is not None else None
    losses = []
    for step in range(STEPS):
        generator = torch.Generator().manual_seed(step if "same" in options else 100 * step + rank)
        x, y = torch.randn(8, 30, generator=generator), torch.randint(0, 5, (8,), generator=generator)
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        if "ignored" not in options:
            model.clip_grad_norm_(0.1)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    if watch is not None:
        watch.close()
    return losses, [param.detach().clone() for param in model.parameters()]


def checked(two, tmp_path, *case):
    """The codes that are found, after training was the same with and without watching, and the Run."""
    import trueline

    out = str(tmp_path / "run")
    for (losses, weights), (seen_losses, seen_weights) in zip(
        two.run(train, None, *case), two.run(train, out, *case), strict=True
    ):
        assert losses == seen_losses
        assert all(map(torch.equal, weights, seen_weights))
    run = trueline.open_run(out)
    assert (run.manifest.adapter, run.manifest.data_parallel_ranks, run.live_findings) == ("fsdp1", [0, 1], [])
    return [(found.code, found.claim) for found in trueline.check(out).findings if found.is_grave], run


@pytest.mark.in_turn
@pytest.mark.parametrize("orig_params", [False, True])
@pytest.mark.parametrize(("strategy", "keys"), [("FULL_SHARD", 2), ("SHARD_GRAD_OP", 2), ("NO_SHARD", 1)])
def test_shards_are_no_replicas_and_losses_are_seen(two, tmp_path, strategy, orig_params, keys):
    found, run = checked(two, tmp_path, strategy, orig_params, ())
    assert found == []
    assert len({env.replica_key for env in run.env.values()}) == keys
    assert run.pivot("loss")[1].all()
    assert run.pivot("grad_norm")[1].all()
    assert run.pivot("reduced_norm")[1].all()


@pytest.mark.parametrize("orig_params", [False, True])
def test_ranks_that_read_the_same_samples_are_found(two, tmp_path, orig_params):
    found, _ = checked(two, tmp_path, "FULL_SHARD", orig_params, ("same",))
    assert found == [("duplicate-data", "Ranks 0 and 1 consumed the same samples at steps 0-7.")]


def test_a_module_that_fsdp_ignores_and_nobody_reduces_is_found(two, tmp_path):
    found, _ = checked(two, tmp_path, "FULL_SHARD", True, ("ignored",))
    (unreduced, claim), (drift, where) = found
    assert (unreduced, drift) == ("gradient-not-reduced", "replica-drift")
    assert "their own gradients of gate unreduced at steps 0-7" in claim
    assert where.startswith("Ranks 0 and 1 hold different values of 2 parameters, equal before the update of step 0")
    assert where.endswith(": gate.weight and gate.bias.")


def wrap_late(rank, world, out, kind):
    """Losses of a model that was called, and watched, before FSDP wrapped it."""
    from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard

    import trueline

    torch.manual_seed(0)
    model = Net()
    early = torch.optim.SGD(model.parameters(), lr=0.1)
    watch = trueline.watch(model, early, out=out, plan={"params_every": 1}) if out is not None else None
    model(torch.randn(2, 30))
    keys = {"device_id": torch.device("cpu"), "use_orig_params": kind == "parameters of the user's"}
    wrapped = fully_shard(model) if kind == "fsdp2" else FullyShardedDataParallel(model, **keys)
    optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.1)
    if watch is not None:
        watch.updates.add(optimizer)
    torch.manual_seed(rank)
    losses = []
    for _ in range(STEPS):
        loss = wrapped(torch.randn(8, 30)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    if watch is not None:
        watch.close()
    return losses


@pytest.mark.parametrize("kind", ["flat parameters", "parameters of the user's", "fsdp2"])
def test_of_a_model_that_is_wrapped_late_only_losses_and_samples_are_watched_and_that_is_said(two, tmp_path, kind):
    import trueline

    out = str(tmp_path / "run")
    assert two.run(wrap_late, None, kind) == two.run(wrap_late, out, kind)
    run = trueline.open_run(out)
    said = [finding.claim for finding in run.live_findings]
    assert len(said) == 2
    assert all("FSDP wrapped the model after its first training forward pass" in claim for claim in said)
    assert run.pivot("loss")[1].all()
    assert [finding.code for finding in trueline.check(out).findings if finding.is_grave] == []
